"""Line numbers agree with where a reader sees the key."""

from __future__ import annotations

import tomllib

import pytest

from educe.config.positions import format_key, parse_key, scan_positions

TEXT = '''\
# a comment with key = 1 inside
stages = [
  "rl",  # x = 2
]
[rl]
steps = 5 # trailing
"group_size" = 4
[domains."rg/gcd/tiny"]
weight = 2.0
[domains]
"a.b".weight = 1
'c d' = { weight = 3, options = { level = 1, deep = [
  { k = "}" }, 2 ] } }
[model]
lora.rank = 8
name = """
a multi = line
[text]"""
chat_template = \'\'\'x'\'\'\'
lora.alpha = 1.5
'''


def test_lines_of_every_kind_of_key() -> None:
    tomllib.loads(TEXT)
    lines = {format_key(path): line for path, line in scan_positions(TEXT).items()}
    assert lines["stages"] == 2
    assert lines["rl"] == 5
    assert lines["rl.steps"] == 6
    assert lines["rl.group_size"] == 7
    assert lines['domains."rg/gcd/tiny"'] == 8
    assert lines['domains."rg/gcd/tiny".weight'] == 9
    assert lines['domains."a.b".weight'] == 11
    assert lines['domains."c d".options.level'] == 12
    assert lines['domains."c d".options.deep.k'] == 13
    assert lines["model.lora.rank"] == 15
    assert lines["model.name"] == 16
    assert lines["model.chat_template"] == 19
    assert lines["model.lora.alpha"] == 20
    assert not any("multi" in key or key == "key" or key == "x" for key in lines)


def _paths(values: dict[str, object], prefix: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for key, value in values.items():
        found.add((*prefix, key))
        if isinstance(value, dict):
            found |= _paths(value, (*prefix, key))
    return found


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "a.b.c = 1\r\n[x]\r\ny = '''\r\n z = 1'''\r\nq=2",
        'k = "a \\" # = b"\n[ t . "u v" ]\nw=[[1,2],["]"]]\n',
        "[[a.list]]\nx = 1\n[[a.list]]\nx = 2\n[a.list.deep]\ny = 1979-05-27T07:32:00Z\n",
        'e = """x\\""" y""""\nf = 1',
    ],
)
def test_every_key_of_tomllib_has_a_line(text: str) -> None:
    values = tomllib.loads(text)
    assert _paths(values) <= set(scan_positions(text))


def test_override_keys_may_leave_out_quotes() -> None:
    path, end = parse_key("domains.rg/gcd/tiny.weight=2")
    assert path == ("domains", "rg/gcd/tiny", "weight")
    assert "domains.rg/gcd/tiny.weight=2"[end:] == "=2"
    assert parse_key('domains."a.b".weight = 1')[0] == ("domains", "a.b", "weight")
    with pytest.raises(ValueError, match="expected a key"):
        parse_key("=2")
