"""A user's domains whose tools and scores would not be the same a second time.

``world`` is a folder of marks, with the day in a file: what was asked on an earlier day is answered
otherwise, as a real tool or a busy grader may. A run that is resumed on another day ends like an
uninterrupted one only if it does not ask again.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Message, Reply, Score, Task, assistant, user


class Oracle(DomainBase):
    """Three turns of short questions to an oracle, scored by what it said."""

    spec = DomainSpec("oracle", "oracle", "tools", "Ask and learn.", max_turns=3)

    def __init__(self, world: str = "") -> None:
        self._world = Path(world) if world else None

    def task(self, split, index):
        return Task("oracle", split, index, (user(f"{split} {index}: ask"),))

    def demonstration(self, task):
        words = [chr(97 + (task.index + turn) % 26) for turn in range(3)]
        return (assistant(words[0]), user("yes"), assistant(words[1]), user("no"),
                assistant(words[2]))  # fmt: skip

    def respond(self, task, state, transcript, services):
        said = self._say("tool", task, transcript)
        asked = [*(state or []), said]
        return Reply((Message("tool", said),), done=len(asked) == 3, state=asked)

    def score(self, task, state, transcript, services):
        return Score.graded(int(self._say("score", task, transcript), 16) / 0xFFFF)

    def _say(self, what, task, transcript):
        text = what + task.task_id + "".join(m.content for m in transcript)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if self._world is not None:
            mark, day = self._world / digest, (self._world / "day").read_text()
            if mark.exists() and mark.read_text() != day:
                return os.urandom(2).hex()
            mark.write_text(day)
        return digest[:4]


class Sleepy(DomainBase):
    """Every eighth answer is one that the scorer never gets done with: it is unscored."""

    spec = DomainSpec("sleepy", "sleepy", "text", "Write.", has_gold=False)

    def task(self, split, index):
        return Task("sleepy", split, index, (user(f"{split} {index}: write"),))

    def score(self, task, state, transcript, services):
        digest = hashlib.blake2b(transcript[-1].content.encode(), digest_size=2).digest()
        if digest[0] % 8 == 0:
            time.sleep(600)
        return Score.graded(digest[1] / 255)
