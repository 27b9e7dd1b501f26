"""A module with a small domain, written next to a recipe by tests of what recipes come to."""

ECHO = """\
from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Score, Task, user

class Echo(DomainBase):
    def __init__(self, name="echo"):
        self.spec = DomainSpec(name, name, "text", "Echo.", max_completion_tokens=LIMIT)

    def task(self, split, index):
        return Task(self.spec.name, split, index, (user(str(index)),), "x")

    def score(self, task, state, transcript, services):
        return Score.wrong()
"""
