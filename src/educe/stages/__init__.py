"""The training stages by kind. A new kind is a function of ``StageParts`` with a line here."""

from collections.abc import Callable

from educe.stages.preference import preference_stage
from educe.stages.sampled import distillation_stage, rejection_stage
from educe.stages.supervised import supervised_stage
from educe.training_stages import StageParts, TrainingStage, reinforce_stage

STAGES: dict[str, Callable[[StageParts], TrainingStage]] = {
    "sft": supervised_stage,
    "preference": preference_stage,
    "rejection": rejection_stage,
    "distillation": distillation_stage,
    "rl": reinforce_stage,
}
