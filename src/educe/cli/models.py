"""``educe models``: what model names mean here, and fetching packaged weights."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("models", help="list, fetch and check models")
    parser.add_argument("action", nargs="?", default="list", choices=["list", "fetch", "check"])
    parser.add_argument("name", nargs="?", help="model name or folder")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    from educe.core.errors import EduceError

    if arguments.action == "list":
        return _list(arguments.json)
    if not arguments.name:
        raise EduceError(f"educe models {arguments.action} needs a model name or folder")
    if arguments.action == "fetch":
        from educe.models.load import find_folder

        folder = find_folder(arguments.name, announce=partial(print, file=sys.stderr))
        told = {"name": arguments.name, "folder": str(folder)}
        print(strict_json(told) if arguments.json else folder)
        return 0
    from educe.models.architectures import read_shape
    from educe.models.load import find_folder

    shape = read_shape(find_folder(arguments.name, announce=partial(print, file=sys.stderr)))
    if arguments.json:
        print(strict_json({"name": arguments.name, "supported": True, "shape": str(shape)}))
    else:
        print(f"{arguments.name}: supported, {shape}")
    return 0


def _list(as_json: bool) -> int:
    from educe.models.architectures import SUPPORTED
    from educe.models.packaged_weights import PACKAGED, is_ready, packaged_folder

    rows = [
        {
            "name": m.name,
            "package": m.requirement,
            "licence": m.licence,
            "download_mb": m.download_mb,
            "disk_mb": m.disk_mb,
            "cached": str(packaged_folder(m.name)) if is_ready(packaged_folder(m.name)) else None,
        }
        for m in PACKAGED.values()
    ]
    if as_json:
        print(strict_json({"packaged": rows, "architectures": dict(SUPPORTED)}))
        return 0
    for row in rows:
        where = row["cached"] or f"not here yet ({row['download_mb']} MB to fetch)"
        print(f"{row['name']}  {row['licence']}, from {row['package']}: {where}")
    print(f"any local Hugging Face folder of: {', '.join(sorted(SUPPORTED))}")
    return 0
