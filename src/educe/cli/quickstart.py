"""``educe quickstart``: the main job on a CPU, by the shipped recipe of that name."""

from __future__ import annotations

import argparse
from typing import Any

from educe.cli import train


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quickstart",
        help="the main job: teach a small model many things at once, on a CPU",
        description="Train SmolLM2-135M on many domains jointly (SFT, then RL), and compare it "
        "with the base model on held-out tasks. About 15 minutes on 2 cores.",
    )
    train.add_run_arguments(parser)
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    arguments.recipe = "quickstart"
    return train.handler(arguments)
