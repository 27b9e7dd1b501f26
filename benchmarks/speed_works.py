"""What speed.py runs and compares: arms (commands), and rows that read them.

An arm is one process; rows share arms, so that nothing is measured twice.
"""

from __future__ import annotations

from dataclasses import dataclass

Line = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One command.

    Attributes:
        python: whose interpreter: educe, trl or vllm.
        minutes: what it takes on two idle cores, roughly; for --list.
        limit_s: what it may take; longer is a result too.
    """

    script: str
    options: tuple[str, ...] = ()
    python: str = "educe"
    work: str = "W1"
    minutes: float = 1.0
    limit_s: float = 1200.0


@dataclass(frozen=True)
class Row:
    """What is compared: an arm of ours with its peers, of which the best counts.

    Attributes:
        ours, peers: arms; without a peer the figure itself has the limit ``target``.
        figure, peer_figure: what is read from an arm's lines, see ``FIGURES``.
        target: our figure over the peer's (rates), or the peer's over ours (seconds, GB).
    """

    name: str
    ours: str
    peers: tuple[str, ...]
    target: float
    figure: str = "rate"
    peer_figure: str = ""

    @property
    def is_rate(self) -> bool:
        return FIGURES[self.figure][2] == "tokens/s"

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.ours, *self.peers)


FIGURES = {
    # name: (key of a line, which of the lines that have it, unit)
    "rate": ("rate", -1, "tokens/s"),
    "first rate": ("rate", 0, "tokens/s"),
    "cold": ("since_start", 0, "s"),
    "seconds": ("seconds", -1, "s"),
    "peak": ("peak_gb", -1, "GB"),
}

FP32 = ("--dtype", "float32")
STEP = ("--steps", "1")
# Fewer tokens a pack need less memory at the same speed; a prompt of 2,048 tokens must not be cut
# off from its completions, so W2 keeps the default.
SHORT = (*STEP, "--micro-batch-tokens", "1536")
ARMS = {
    "educe bf16": Arm("educe_rollouts.py", minutes=0.6),
    "vLLM bf16": Arm("vllm_rollouts.py", python="vllm", minutes=2.5),
    "educe int8": Arm("educe_rollouts.py", ("--dtype", "int8"), minutes=0.6),
    "vLLM bf16, empty compile cache": Arm(
        "vllm_rollouts.py", ("--calls", "1", "--empty-cache"), "vllm", minutes=3
    ),
    "educe fp32": Arm("educe_rollouts.py", (*FP32, "--calls", "1"), minutes=0.7),
    "transformers fp32": Arm("hf_rollouts.py", FP32, minutes=2),
    "transformers bf16": Arm("hf_rollouts.py", ("--dtype", "bfloat16"), minutes=2),
    "educe bf16, ends ignored": Arm("educe_rollouts.py", ("--fixed",), minutes=0.8),
    "floor of decode, bf16": Arm("floor.py", ("--kind", "decode"), minutes=0.3),
    "educe packed bf16": Arm("educe_packed.py", minutes=0.8),
    "floor of training, bf16": Arm("floor.py", ("--kind", "train"), minutes=0.4),
    "educe packed fp32": Arm("educe_packed.py", (*FP32, "--calls", "2"), minutes=1.7),
    "floor of training, fp32": Arm("floor.py", ("--kind", "train", *FP32), minutes=0.8),
    "educe step fp32": Arm("educe_step.py", SHORT, minutes=1.7),
    "TRL fp32": Arm("trl_step.py", python="trl", minutes=6),
    "educe step bf16": Arm("educe_step.py", (*SHORT, "--bf16"), minutes=1),
    "TRL bf16": Arm("trl_step.py", ("--bf16",), "trl", minutes=5),
    "educe step LoRA": Arm("educe_step.py", (*SHORT, "--lora"), minutes=1.5),
    "TRL + peft": Arm("trl_step.py", ("--lora",), "trl", minutes=5),
    "educe long prompts, bf16": Arm("educe_step.py", (*STEP, "--bf16"), work="W2", minutes=1.5),
    "TRL long prompts, one row": Arm(
        "trl_step.py", ("--rows", "1"), "trl", "W2", minutes=20, limit_s=1300
    ),
}
TRL = ("TRL fp32", "TRL bf16")
ROWS = (
    Row("rollouts-vllm", "educe bf16", ("vLLM bf16",), 1.1),
    Row("rollouts-int8", "educe int8", ("vLLM bf16",), 1.4),
    Row("cold-warm", "educe bf16", ("vLLM bf16",), 3.0, "cold"),
    Row("cold-empty", "educe bf16", ("vLLM bf16, empty compile cache",), 5.0, "cold"),
    Row("rollouts-fp32", "educe fp32", ("transformers fp32",), 5.0, "first rate"),
    Row(
        "rollouts-bf16",
        "educe bf16",
        ("transformers fp32", "transformers bf16"),
        8.0,
        "first rate",
    ),
    Row("rollouts-fixed", "educe bf16, ends ignored", ("floor of decode, bf16",), 0.75),
    Row("packed-bf16", "educe packed bf16", ("floor of training, bf16",), 0.65),
    Row("packed-fp32", "educe packed fp32", ("floor of training, fp32",), 0.65),
    Row("step-fp32", "educe step fp32", ("TRL fp32",), 5.0, "seconds"),
    Row("step-fp32-memory", "educe step fp32", ("TRL fp32",), 2.0, "peak"),
    Row("step-bf16", "educe step bf16", TRL, 5.0, "seconds"),
    Row("step-bf16-memory", "educe step bf16", TRL, 2.0, "peak"),
    Row("step-lora", "educe step LoRA", ("TRL + peft",), 5.0, "seconds"),
    Row("step-long", "educe long prompts, bf16", ("TRL long prompts, one row",), 10.0, "seconds"),
    Row("step-long-memory", "educe long prompts, bf16", (), 8.0, "peak"),
)


def figure_of(lines: list[Line], figure: str) -> float | None:
    """Return a figure from an arm's lines, None where no line has it."""
    key, which, _ = FIGURES[figure]
    values = [line[key] for line in lines if key in line]
    return float(values[which]) if values else None
