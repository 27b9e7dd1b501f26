"""``educe convert RUN OUT``: a run's weights as an ordinary Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="write a run's weights as a model folder",
        description="Write the weights of a model or of a run's newest stage as an ordinary "
        "Hugging Face folder; adapters are merged into them.",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN")
    parser.add_argument("out", type=Path, metavar="FOLDER")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    from educe.core.errors import EduceError
    from educe.models.load import load, save
    from educe.session import model_of

    if arguments.out.is_file():
        raise EduceError(f"{arguments.out} is a file; give a new folder")
    if arguments.out.exists() and any(arguments.out.iterdir()):
        raise EduceError(f"{arguments.out} is not empty; give a new folder")
    model = load(
        model_of(arguments.model)[0],
        dtype=arguments.dtype,
        device="cpu",
        announce=partial(print, file=sys.stderr),
    )
    save(model, arguments.out)
    if arguments.json:
        print(strict_json({"folder": str(arguments.out), "dtype": arguments.dtype}))
        return 0
    print(f"{arguments.out}: loads with transformers' AutoModelForCausalLM")
    return 0
