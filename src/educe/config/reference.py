"""The recipe reference, written from the settings' own texts.

``python -m educe.config.reference > docs/recipes.md`` writes the page; a test holds it current.
"""

from __future__ import annotations

import sys

from educe.config.positions import KeyPath, format_key
from educe.config.schema import (
    Node,
    default_of,
    describe_expected,
    format_value,
    walk_settings,
)

_HEAD = """\
# Recipe reference

A recipe is a TOML file. Every key has a default, an unknown key is an error, and any key can be
overridden on the command line: `educe train RECIPE section.key=value`. This page is written by
`python -m educe.config.reference > docs/recipes.md` from the texts in `educe/config/settings.py`.

```toml
stages = ["sft", "rl", "eval"]

[model]
name = "smollm2-135m-instruct"

[domains."rg/gcd/tiny"]       # a name from `educe domains`, or a glob such as "rg/*/tiny"
weight = 2.0

[domains.mine]                # your own rows and your own reward
path = "questions.jsonl"
reward = "rewards:exact"

[rl]
steps = 200
group_size = 8
```

How a recipe is read:

- `extends = "other.toml"`, at the top, lays this recipe over another one beside it; only what
  differs needs to be written.
- Files named in a recipe (`path`, `chat_template`, a model folder, `review.words`, the file of a
  `reward` or `function`) are looked for beside the recipe first, then from the working folder.
- An override's value is TOML; text needs no quotes (`model.name=my-model`), a list is written
  `'run.sinks=["wandb"]'` and a domain's name may stay bare: `domains.rg/gcd/tiny.weight=2`.
- `educe explain RECIPE` prints every value with the file and line it came from.

To try a recipe in seconds and without weights, write a model of 27,000 random parameters and name
its folder: `python -c "from educe.models.tiny import save_tiny; save_tiny('tiny')"`, then
`model.name=tiny`.
"""


def reference() -> str:
    """Return the whole page as Markdown."""
    tables: dict[KeyPath, list[str]] = {(): []}
    for path, field in walk_settings():
        node = Node(field.annotation, field)
        if node.section is not None:
            tables[path] = []
            continue
        default = default_of(field)
        cells = (
            f"`{path[-1]}`",
            describe_expected(node).replace("|", "\\|"),
            "not set" if default is None else f"`{format_value(default)}`",
            (field.description or "").replace("|", "\\|"),
        )
        tables.setdefault(path[:-1], []).append(f"| {' | '.join(cells)} |")
    parts = [_HEAD]
    for path, rows in tables.items():
        if rows:
            title = f"## [{_title(path)}]" if path else "## Top level"
            parts.append("\n".join([title, "", "| key | value | default | meaning |"]))
            parts[-1] += "\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    return "\n".join(parts)


def _title(path: KeyPath) -> str:
    return format_key(path).replace('"*"', '"NAME"')


if __name__ == "__main__":
    sys.stdout.write(reference())
