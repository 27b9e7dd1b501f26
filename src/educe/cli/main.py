"""``educe VERB …``: finds the verb's file and turns errors into one plain message.

A verb's file exposes ``add_parser(subparsers)``, which adds its own parser and sets ``handler``, a
function of the parsed arguments that returns the exit status (None is 0). Only the verb that was
asked for is imported, so ``educe --help`` knows the others by the lines below.

Exit status: 0 done, 1 the verb says no (a failed check), 2 an error of the user's or the machine's,
130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import educe
from educe.core.errors import EduceError

VERBS = {
    "train": "run a recipe: its stages, with checkpoints and a live view",
    "quickstart": "the main job: teach a small model many things at once, on a CPU",
    "explain": "print a recipe resolved: loss, batch algebra, origins, memory and disk",
    "plan": "predict memory, time and cost on some hardware; split a budget",
    "probe": "sample the untrained model: which domains have signal",
    "profile": "where a step's time goes: phases against floors, slowest rewards, a timeline",
    "rollout": "show a few samples of a recipe before any training",
    "eval": "score a model on held-out tasks, with intervals",
    "compare": "compare two finished evaluations, with a verdict per domain",
    "forgetting": "which of hundreds of domains a checkpoint lost: screen, confirm, trend",
    "gate": "promote, hold or roll back a model, by a policy; exit codes for CI",
    "chat": "talk to a model or to the result of a run",
    "serve": "serve a model over HTTP as OpenAI does: chat, completions, likelihoods",
    "domains": "list, search, show and check domains",
    "safety": "review texts; train and measure its classifier; the human review queue",
    "sandbox": "what isolation this machine offers, and a self-test",
    "runs": "list runs; show, plot, diff and export them",
    "models": "list, fetch and check models",
    "convert": "write a run's weights as an ordinary model folder",
    "doctor": "what this machine offers: cores, memory, device, extras",
}


# A file or folder that is not as the command needs it; other system errors are faults of ours.
_USERS_FILES = frozenset(
    {
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST,
        errno.ENOTEMPTY, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG,
    }
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Takes ``section.key=value`` behind an option as well: argparse fills a list only once."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        late = [word for word in rest if "=" in word and not word.startswith("-")]
        unknown = [word for word in rest if word not in late]
        if unknown or (late and not hasattr(parsed, "overrides")):
            self.error(f"unrecognized arguments: {' '.join(unknown or late)}")
        if late:
            parsed.overrides = [*parsed.overrides, *late]
        return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parsed = build_parser(_verb_of(given)).parse_args(given)
        status = parsed.handler(parsed)
        sys.stdout.flush()  # a closed pipe shows here, not at interpreter exit
        return int(status or 0)
    except EduceError as error:
        print(f"educe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("educe: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; point stdout elsewhere so that exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _USERS_FILES or error.filename is None:
            raise
        print(f"educe: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the whole parser; only ``verb``'s own file is imported, all others are stubs."""
    parser = _Parser(
        prog="educe",
        description="Joint post-training reinforcement learning of language models.",
        epilog="`educe VERB --help` tells more. Start with `educe quickstart`.",
    )
    parser.add_argument("--version", action="version", version=f"educe {educe.__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in VERBS.items():
        if name == verb:
            importlib.import_module(f"educe.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text)
    return parser


def _verb_of(arguments: Sequence[str]) -> str | None:
    first = next((a for a in arguments if not a.startswith("-")), None)
    return first if first in VERBS else None


if __name__ == "__main__":
    sys.exit(main())
