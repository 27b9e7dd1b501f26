"""Sealed sets: evaluation tasks that are opened rarely, with every look on record.

Choosing among checkpoints by the same held-out tasks overfits them, one look at a time. A sealed
set names its tasks by a digest, is opened for a stated reason, and says how often it was opened. It
cannot stop anyone; it makes looking visible, also that the tasks are still the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.protocols import Domain
from educe.core.types import JSON, Split

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Look:
    """One opening: what was evaluated, why, and when (seconds since 1970)."""

    subject: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class SealedSet:
    """A sealed set as its file says.

    Attributes:
        ranges: (first index, number of tasks) of the split by domain.
        digest: of the contents of all tasks.
        max_looks: openings that are allowed; 0 is no limit.
    """

    path: Path
    split: Split
    ranges: Mapping[str, tuple[int, int]]
    digest: str
    max_looks: int
    looks: tuple[Look, ...]

    @property
    def num_looks(self) -> int:
        return len(self.looks)


def seal(
    path: Path,
    domains: Mapping[str, Domain],
    *,
    num_tasks: int,
    first: int = 0,
    split: Split = Split.EVAL,
    max_looks: int = 0,
) -> SealedSet:
    """Seal tasks ``first`` … of a split of every domain in a new file.

    Raises EduceError where the file exists or a domain has too few tasks.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for name, domain in domains.items():
        size = domain.size(split)
        if size is not None and size < first + num_tasks:
            raise EduceError(
                f"{name} has {size} {split} tasks, too few to seal {num_tasks} from {first} on"
            )
        ranges[name] = (first, num_tasks)
    head = {
        "format_version": FORMAT_VERSION,
        "split": str(split),
        "ranges": {n: list(r) for n, r in ranges.items()},
        "digest": _digest(domains, split, ranges),
        "max_looks": max_looks,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
    except FileExistsError as error:
        raise EduceError(f"{path} exists: a sealed set is never sealed again") from error
    return read_sealed(path)


def read_sealed(path: Path) -> SealedSet:
    """Return a sealed set without opening it.

    Raises EduceError for a file that is none.
    """
    try:
        head, *rest = [json.loads(line) for line in path.read_bytes().splitlines()]
        if head["format_version"] != FORMAT_VERSION:
            raise EduceError(f"{path}: a sealed set of format {head['format_version']}")
        return SealedSet(
            path,
            Split(head["split"]),
            {n: (int(a), int(b)) for n, (a, b) in head["ranges"].items()},
            head["digest"],
            head["max_looks"],
            tuple(Look(**look) for look in rest),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EduceError(f"{path} is no sealed set: {error}") from error


def open_sealed(
    path: Path, domains: Mapping[str, Domain], *, subject: str, reason: str
) -> SealedSet:
    """Record a look and return the set, after proving that its tasks are the sealed ones.

    Raises:
        EduceError: no reason given, a changed task, a missing domain, or no look left.
    """
    if not reason.strip() or not subject.strip():
        raise EduceError("opening a sealed set needs a subject and a reason, for the record")
    sealed = read_sealed(path)
    missing = sorted(set(sealed.ranges) - set(domains))
    if missing:
        raise EduceError(f"{path}: the domains {', '.join(missing)} are not at hand")
    if _digest(domains, sealed.split, sealed.ranges) != sealed.digest:
        raise EduceError(
            f"{path}: the tasks are not the sealed ones; the domain or its data changed, so a "
            f"result would not be comparable. Seal a new set"
        )
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        num_looks = file.read().count("\n") - 1
        if sealed.max_looks and num_looks >= sealed.max_looks:
            raise EduceError(
                f"{path}: all {sealed.max_looks} looks are used ("
                + "; ".join(f"{look.subject}: {look.reason}" for look in sealed.looks[-3:])
                + "). Seal a fresh set"
            )
        look = {"subject": subject, "reason": reason, "at_s": time.time()}
        file.write(json.dumps(look) + "\n")
        file.flush()
    return read_sealed(path)


def _digest(
    domains: Mapping[str, Domain], split: Split, ranges: Mapping[str, Sequence[int]]
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(ranges):
        first, count = ranges[name]
        for index in range(first, first + count):
            digest.update(f"{name} {index} ".encode())
            digest.update(domains[name].task(split, index).content_hash.encode())
    return digest.hexdigest()


def looks_json(sealed: SealedSet) -> dict[str, JSON]:
    """Return what a report shows of a sealed set."""
    return {
        "file": sealed.path.name,
        "split": str(sealed.split),
        "tasks": sum(count for _, count in sealed.ranges.values()),
        "domains": len(sealed.ranges),
        "num_looks": sealed.num_looks,
        "max_looks": sealed.max_looks,
        "looks": [
            {"subject": look.subject, "reason": look.reason, "at_s": look.at_s}
            for look in sealed.looks
        ],
    }
