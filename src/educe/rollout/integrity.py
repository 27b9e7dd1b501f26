"""Scores whose tests shared a process with the model's code: they train only by opting in."""

from __future__ import annotations

from educe.core.errors import DomainError
from educe.core.types import Group, Split

IN_PROCESS = "in_process"
OPT_IN = (
    "its tests ran in the process of the model's code (integrity = in_process), where a program "
    "that knows them can forge a pass. Training on that must be opted in to: "
    "sandbox.in_process_tests = true."
)


def check_integrity(group: Group, *, in_process_tests: bool) -> Group:
    """Return a group that may train, whatever its domain's spec says about itself.

    Only groups of the train split are looked at: judging a model by such tests is no danger,
    training on them teaches to forge them.

    Args:
        in_process_tests: the recipe's ``sandbox.in_process_tests``.

    Raises:
        DomainError: a score's proof says ``integrity = in_process`` and the recipe does not opt in.
    """
    if in_process_tests or group.request.split is not Split.TRAIN:
        return group
    for trajectory in group.trajectories:
        if trajectory.score.proof.get("integrity") == IN_PROCESS:
            raise DomainError(
                f"{group.task.task_id}: {OPT_IN} Or remove the domain {group.request.domain}."
            )
    return group
