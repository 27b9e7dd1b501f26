"""The settings of a run, one frozen section each. Defaults live here and nowhere else.

The texts in ``description`` are the recipe reference: docs and ``educe explain`` print them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from educe.config.algorithm_settings import AlgorithmSettings as AlgorithmSettings
from educe.config.algorithm_settings import (
    ExplorationSettings,
    ShapingSettings,
)
from educe.config.balance_settings import BackOffSettings as BackOffSettings
from educe.config.balance_settings import BalanceSettings as BalanceSettings
from educe.config.balance_settings import ForgettingSettings as ForgettingSettings
from educe.config.guard_settings import GuardSettings as GuardSettings
from educe.config.mixture_settings import CurriculumSettings as CurriculumSettings
from educe.config.mixture_settings import MixtureSettings as MixtureSettings
from educe.config.model_settings import PrefetchSettings as PrefetchSettings
from educe.config.model_settings import RopeSettings as RopeSettings
from educe.config.review_settings import ReviewSettings as ReviewSettings
from educe.config.section import Section as Section
from educe.core.stages import stage_names

StageKind = Literal["sft", "preference", "rejection", "distillation", "rl", "eval"]


class RunSettings(Section):
    name: str = Field("run", description="Name of the run; its folder is OUT/NAME.")
    seed: int = Field(0, ge=0, description="Root of every random draw of the run.")
    out: str = Field("runs", description="Folder that holds run folders.")
    mode: Literal["exact", "fast"] = Field(
        "fast",
        description="exact: a resumed run ends bitwise equal to an uninterrupted one; "
        "fast: nothing is lost or trained twice, but texts may differ.",
    )
    threads: int = Field(0, ge=0, description="CPU threads for torch; 0 takes all cores.")
    ranks: int = Field(1, ge=1, description="Trainer processes (gloo, or nccl on CUDA).")
    price_per_hour: float = Field(
        0.0, ge=0, description="Of the machine, in any currency; reports then tell gain by cost."
    )
    sinks: tuple[str, ...] = Field(
        (), description="Live sinks beside the run store: wandb, mlflow, trackio, tensorboard."
    )


class LoraSettings(Section):
    rank: int = Field(0, ge=0, description="LoRA rank; 0 trains every weight.")
    alpha: float = Field(32.0, gt=0, description="LoRA alpha (scale is alpha / rank).")
    targets: str | tuple[str, ...] = Field("all-linear", description="Modules that get adapters.")


class ModelSettings(Section):
    name: str = Field(
        "smollm2-135m-instruct",
        description="A known name, a local Hugging Face folder, or a hub id (with allow_hub).",
    )
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="Type of the master weights."
    )
    compute_dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        "auto", description="Autocast type of forward and backward; auto is the master type."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA, else CPU.")
    lora: LoraSettings = Field(default_factory=lambda: LoraSettings())
    context_length: int = Field(
        0, ge=0, description="Longest prompt + completion in tokens; 0 takes the model's own."
    )
    chat_template: str = Field("", description="A Jinja file that replaces the model's template.")
    system_prompt: str | None = Field(
        None, description="System message put first; none by default (unset keeps the template's)."
    )
    allow_hub: bool = Field(False, description="Try the hub when nothing local fits (5 s limit).")
    rope: RopeSettings = Field(default_factory=lambda: RopeSettings())
    gradient_checkpointing: bool = Field(
        False, description="Recompute layers in the backward, all but their attention."
    )
    activation_offload: bool = Field(
        False,
        description="Put what checkpointing keeps aside: into host memory (CUDA) or a file (CPU).",
    )


class DomainSettings(Section):
    weight: float = Field(1.0, ge=0, description="Share of prompts, relative to the others.")
    path: str = Field("", description="JSONL file or Hugging Face dataset folder of the tasks.")
    function: str = Field("", description="module:function that returns a Domain.")
    reward: str | tuple[str, ...] = Field(
        "", description="module:function reward(s), TRL or verl signature, for path domains."
    )
    prompt_field: str = Field("prompt", description="Column of the prompt (text or messages).")
    answer_field: str = Field("answer", description="Column of the gold answer.")
    eval_fraction: float = Field(0.1, gt=0, lt=1, description="Share of rows held out.")
    algorithm: str = Field("", description="Algorithm of this domain; empty takes the run's.")
    temperature: float = Field(0.0, ge=0, description="Sampling temperature; 0 takes the run's.")
    max_completion_tokens: int = Field(0, ge=0, description="Tokens a turn; 0 takes the stage's.")
    max_turns: int = Field(0, ge=0, description="Turns; 0 takes the domain's own.")
    shaping: ShapingSettings | None = Field(
        None, description="Shaping of this domain; unset takes the run's."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the domain's constructor."
    )


class DataSettings(Section):
    """[sft.data.NAME], [preference.data.NAME]: rows that train without being a domain."""

    path: str = Field("", description="JSONL file or dataset folder; or a run folder (preference).")
    weight: float | None = Field(
        None, ge=0, description="Share of examples; unset: data sets without one are concatenated."
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="Columns of another name, e.g. prompt = 'question'."
    )
    template: Literal["chat", "none"] = Field(
        "chat", description="Text prompts: as a user's message, or joined as they are (as TRL)."
    )
    split: str = Field("", description="Split of a saved DatasetDict; train by default.")
    eval_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of rows held out for evaluation during training."
    )
    eval_path: str = Field("", description="Rows of their own for evaluation during training.")
    streaming: bool = Field(
        False, description="Read in file order without an index; needs sft.steps."
    )
    shuffle_buffer: int = Field(1000, gt=0, description="Rows that a stream is shuffled over.")


class WatchSettings(Section):
    """[sft.watch], [preference.watch]: evaluation during training on held-out examples."""

    every: int = Field(0, ge=0, description="Steps between evaluations; 0 is none.")
    examples: int = Field(64, gt=0, description="Held-out examples of each source.")
    patience: int = Field(
        0, ge=0, description="Evaluations without a better loss before the stage ends; 0 is never."
    )
    min_improvement: float = Field(0.0, ge=0, description="What counts as a better loss.")
    keep_best: bool = Field(
        True, description="End the stage with the weights of its best evaluation."
    )


class SupervisedSettings(Section):
    """[sft]"""

    steps: int = Field(0, ge=0, description="Optimizer steps; 0 follows epochs or the budget.")
    epochs: float = Field(1.0, gt=0, description="Passes over num_tasks examples.")
    num_tasks: int = Field(
        0,
        ge=0,
        description="Examples of an epoch, over all sources; 0: the rows of the data sets "
        "once, or 512 demonstrations without any.",
    )
    batch_size: int = Field(16, gt=0, description="Examples an optimizer step.")
    learning_rate: float = Field(3e-5, gt=0, description="Peak learning rate.")
    minutes: float = Field(0.0, ge=0, description="Wall-clock budget of the stage; 0 is none.")
    data: dict[str, DataSettings] = Field(
        default_factory=dict, description="Data sets beside the domains' gold answers."
    )
    demonstrations: bool = Field(True, description="Train on the domains' gold answers.")
    loss_on: Literal["assistant", "last", "all"] = Field(
        "assistant", description="Trained tokens: all assistant turns, the last one, or all text."
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of the target spread over the whole vocabulary."
    )
    neftune_alpha: float = Field(0.0, ge=0, description="Noise on embeddings (NEFTune); 0 is off.")
    too_long: Literal["skip", "cut"] = Field(
        "skip", description="Examples longer than the context: left out and counted, or cut."
    )
    watch: WatchSettings = Field(default_factory=lambda: WatchSettings())


class MiningSettings(Section):
    """[preference.mine]: pairs from the domains' own scored samples, drawn as the stage begins."""

    prompts: int = Field(0, ge=0, description="Prompts to sample; 0 mines nothing.")
    group_size: int = Field(8, gt=1, description="Completions a prompt.")
    min_gap: float = Field(
        0.5, gt=0, description="Least difference of the two scores that makes a pair."
    )
    pairs: int = Field(1, gt=0, description="Pairs a prompt at most.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    max_completion_tokens: int = Field(
        0, ge=0, description="Tokens a turn; 0 takes each domain's own need."
    )


class PreferenceSettings(Section):
    """[preference] Empty values take the loss's published default."""

    loss: str = Field("dpo", description="dpo, ipo, ipo_mean, kto, orpo or simpo.")
    beta: float | None = Field(None, gt=0, description="Strength of the pull to the reference.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Share of flipped labels supposed (DPO)."
    )
    margin: float | None = Field(None, ge=0, description="Target margin (SimPO).")
    odds_weight: float | None = Field(None, gt=0, description="Weight of the odds ratio (ORPO).")
    desirable_weight: float = Field(1.0, ge=0, description="Weight of wanted examples (KTO).")
    undesirable_weight: float = Field(1.0, ge=0, description="Weight of unwanted ones (KTO).")
    sft_weight: float = Field(
        0.0, ge=0, description="Adds this times -log p a token of what is preferred."
    )
    steps: int = Field(0, ge=0, description="Optimizer steps; 0 follows epochs or the budget.")
    epochs: float = Field(1.0, gt=0, description="Passes over the examples.")
    batch_size: int = Field(16, gt=0, description="Pairs (KTO: examples) an optimizer step.")
    learning_rate: float = Field(5e-7, gt=0, description="Peak learning rate.")
    minutes: float = Field(0.0, ge=0, description="Wall-clock budget of the stage; 0 is none.")
    reference: Literal["auto", "precomputed", "copy", "adapter_off"] = Field(
        "auto",
        description="The model at the stage's start: its values computed before the first step, a "
        "frozen copy, or the base under the adapter. auto: the last where it is the same model, "
        "else the first.",
    )
    data: dict[str, DataSettings] = Field(default_factory=dict, description="Preference data sets.")
    mine: MiningSettings = Field(default_factory=lambda: MiningSettings())
    too_long: Literal["skip", "cut"] = Field(
        "skip", description="Examples longer than the context: left out and counted, or cut."
    )
    watch: WatchSettings = Field(default_factory=lambda: WatchSettings())


class DistillationSettings(Section):
    """[distillation] Learn from a teacher's probabilities of what the policy itself samples."""

    teacher: str = Field("", description="Model folder or known name; must share the tokenizer.")
    steps: int = Field(100, ge=0, description="Sampled batches, one optimizer step each.")
    prompts: int = Field(8, gt=0, description="Prompts a batch.")
    group_size: int = Field(1, gt=0, description="Completions a prompt.")
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate.")
    temperature: float = Field(
        1.0, gt=0, description="Of sampling, and of both distributions that are compared."
    )
    max_completion_tokens: int = Field(
        0, ge=0, description="Tokens a turn; 0 takes each domain's own need."
    )
    coefficient: float = Field(1.0, gt=0, description="Weight of the reverse KL a token.")
    limit: float = Field(20.0, gt=0, description="Largest log-ratio to the teacher that counts.")
    baseline: Literal["others", "none"] = Field(
        "others",
        description="What a token's log-ratio is compared with: the mean of the batch's other "
        "completions (less variance, same expected gradient), or nothing.",
    )
    minutes: float = Field(0.0, ge=0, description="Wall-clock budget of the stage; 0 is none.")


class RejectionSettings(Section):
    """[rejection] Best of N: sample, keep the best, imitate what was kept."""

    prompts: int = Field(256, gt=0, description="Prompts to sample.")
    group_size: int = Field(8, gt=0, description="Completions a prompt.")
    keep: int = Field(1, gt=0, description="Completions kept of a prompt, the best first.")
    min_score: float = Field(0.5, description="Least score that is kept.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    max_completion_tokens: int = Field(
        0, ge=0, description="Tokens a turn; 0 takes each domain's own need."
    )
    epochs: float = Field(1.0, gt=0, description="Passes over what was kept.")
    batch_size: int = Field(16, gt=0, description="Kept completions an optimizer step.")
    learning_rate: float = Field(3e-5, gt=0, description="Peak learning rate.")
    minutes: float = Field(0.0, ge=0, description="Wall-clock budget of the stage; 0 is none.")


class ReinforceSettings(Section):
    """[rl]"""

    steps: int = Field(100, ge=0, description="Rollout batches (each may take several updates).")
    prompts: int = Field(8, gt=0, description="Prompts a rollout batch.")
    batch_tokens: int = Field(
        0,
        ge=0,
        description="Tokens a rollout batch (prompts once a group, all completions): it ends with "
        "the prompt that is predicted to reach them, prompts is then the most; 0 always takes "
        "prompts.",
    )
    group_size: int = Field(8, gt=0, description="Completions a prompt.")
    updates: int = Field(1, gt=0, description="Optimizer steps that share a rollout batch.")
    epochs: int = Field(1, gt=0, description="Passes over each rollout batch.")
    learning_rate: float = Field(2e-6, gt=0, description="Peak learning rate.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of rollouts.")
    max_completion_tokens: int = Field(
        0, ge=0, description="Tokens a turn; 0 takes each domain's own need."
    )
    minutes: float = Field(0.0, ge=0, description="Wall-clock budget of the stage; 0 is none.")
    tokens: int = Field(0, ge=0, description="Completion-token budget of the stage; 0 is none.")
    max_staleness: int = Field(0, ge=0, description="Versions a rollout may lag; 0 is on-policy.")
    drop_trivial: bool = Field(
        False, description="Leave all-equal groups out of the batch size (they carry no signal)."
    )
    score_workers: int = Field(1, gt=0, description="Killable reward workers.")
    score_timeout_s: float = Field(20.0, gt=0, description="Deadline of one score or tool reply.")
    exploration: ExplorationSettings = Field(default_factory=lambda: ExplorationSettings())


class OptimizerSettings(Section):
    name: Literal["adamw", "sgd", "adamw_8bit", "muon"] = Field(
        "adamw",
        description="adamw, sgd, adamw_8bit (moments in 8 bits; needs educe[8bit]), or muon "
        "(matrices of layers; everything else by adamw).",
    )
    implementation: Literal["auto", "fused", "foreach"] = Field(
        "auto", description="AdamW's kernel; auto is the fused one. Same mathematics."
    )
    momentum: float = Field(0.95, ge=0, lt=1, description="Muon: decay of the gradient's mean.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the gradient's mean.")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW: decay of the gradient's square.")
    eps: float = Field(1e-8, gt=0, description="AdamW: added to the root of the square.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay of matrices' weights.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradient norm clip; 0 switches off.")
    warmup_steps: int = Field(2, ge=0, description="Linear warm-up.")
    warmup_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Warm-up as a share of the stage's steps; the longer one counts.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Decay.")
    final_fraction: float = Field(
        0.0, ge=0, le=1, description="Part of the peak rate at which a decay ends."
    )
    micro_batch_tokens: int = Field(
        4096, gt=0, description="Tokens of one packed forward and backward (memory, not maths)."
    )
    back_off: BackOffSettings = Field(default_factory=lambda: BackOffSettings())


class EngineSettings(Section):
    kind: Literal["embedded"] = Field("embedded", description="Which engine samples.")
    max_rows: int = Field(64, gt=0, description="Completions decoded at once.")
    dtype: Literal["auto", "float32", "bfloat16", "float64", "int8"] = Field(
        "auto",
        description="Weights' type for sampling; auto takes the trainer's, int8 rounds products.",
    )
    forward: Literal["auto", "torch", "module"] = Field(
        "auto",
        description="auto compiles a fused forward from the model (packed copies of its weights) "
        "with kernels of its own where there is a C compiler, torch goes without these kernels, "
        "module runs the model itself; mode exact always does.",
    )
    drafts: bool = Field(
        True,
        description="Where few rows are left, try the tokens that followed the same words before: "
        "the same completions in fewer steps. Never in mode exact.",
    )
    cuda_graphs: bool = Field(
        True,
        description="On CUDA, record decode steps that come again and launch them as a whole. "
        "Never in mode exact.",
    )
    prefill_tokens: int = Field(2048, gt=0, description="Prompt tokens computed in one forward.")
    workers: int = Field(
        0, ge=0, description="Rollout processes; 0 samples inside the trainer's process."
    )


class EvalSettings(Section):
    """[eval]"""

    tasks_per_domain: int = Field(50, gt=0, description="Held-out tasks a domain.")
    samples: int = Field(1, gt=0, description="Completions a task.")
    temperature: float = Field(0.0, ge=0, description="0 is greedy.")
    baseline: Literal["none", "start", "base-best-prompt"] = Field(
        "start", description="What the result is compared with."
    )
    few_shot: int = Field(3, ge=0, description="Examples of the few-shot base prompt.")
    interval: float = Field(0.95, gt=0.5, lt=1, description="Coverage of the intervals.")
    least_completion_tokens: int = Field(
        0,
        ge=0,
        description="Tokens that a turn may have at least, whatever the domain's own limit, so "
        "that a model that never learned to answer briefly can finish.",
    )
    suite: str = Field("", description="Suite asked after training too, e.g. standard.")
    tier: Literal["small", "medium", "large"] = Field(
        "small", description="How much the suite asks."
    )
    dimensions: tuple[str, ...] = Field((), description="Dimensions of the suite; empty is all.")
    strategy: Literal["direct", "cot", "tools", "reflect", "self-consistency", "best-of-n"] = Field(
        "direct", description="How the suite's tasks are answered."
    )
    suite_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Options of dimensions, by dimension."
    )


class CheckpointSettings(Section):
    every_steps: int = Field(0, ge=0, description="Steps between checkpoints; 0 is off.")
    every_minutes: float = Field(10.0, ge=0, description="Minutes between checkpoints; 0 is off.")
    keep: int = Field(2, gt=0, description="Newest checkpoints kept (the best one is kept too).")
    best_metric: str = Field("reward", description="Metric whose highest value marks the best.")


class SandboxSettings(Section):
    minimum: Literal["plain", "confined", "namespaces", "cgroups"] = Field(
        "namespaces",
        description="Least isolation of model-written code; a host that enforces less refuses to "
        "run. Naming less than namespaces accepts it: that keeps accidents in, not attackers.",
    )
    in_process_tests: bool = Field(
        False,
        description="Train on domains whose tests share a process with the model's code, where a "
        "program that knows the tests can forge a pass.",
    )
    num_parallel: int = Field(
        0, ge=0, description="Programs that run at once, over all reward workers; 0 is one a core."
    )


class GoalSettings(Section):
    targets: dict[str, float] = Field(default_factory=dict, description="Domain: score to reach.")
    guardrails: dict[str, float] = Field(
        default_factory=dict, description="Domain: score that must not be undercut."
    )
    check_every: int = Field(10, gt=0, description="Steps between looks at the goal.")
    tasks: int = Field(32, gt=0, description="Screen tasks a domain and look.")
    patience: int = Field(3, gt=0, description="Looks without progress before out of reach.")


class Recipe(Section):
    """A whole recipe. Sections not given take their defaults."""

    stages: tuple[StageKind, ...] = Field(
        ("sft", "rl", "eval"), description="What happens, in this order."
    )
    run: RunSettings = Field(default_factory=lambda: RunSettings())
    model: ModelSettings = Field(default_factory=lambda: ModelSettings())
    domains: dict[str, DomainSettings] = Field(
        default_factory=dict, description="Domain name or glob: its settings."
    )
    sft: SupervisedSettings = Field(default_factory=lambda: SupervisedSettings())
    preference: PreferenceSettings = Field(default_factory=lambda: PreferenceSettings())
    rejection: RejectionSettings = Field(default_factory=lambda: RejectionSettings())
    distillation: DistillationSettings = Field(default_factory=lambda: DistillationSettings())
    rl: ReinforceSettings = Field(default_factory=lambda: ReinforceSettings())
    eval: EvalSettings = Field(default_factory=lambda: EvalSettings())
    algorithm: AlgorithmSettings = Field(default_factory=lambda: AlgorithmSettings())
    shaping: ShapingSettings = Field(default_factory=lambda: ShapingSettings())
    optimizer: OptimizerSettings = Field(default_factory=lambda: OptimizerSettings())
    engine: EngineSettings = Field(default_factory=lambda: EngineSettings())
    prefetch: PrefetchSettings = Field(default_factory=lambda: PrefetchSettings())
    checkpoint: CheckpointSettings = Field(default_factory=lambda: CheckpointSettings())
    sandbox: SandboxSettings = Field(default_factory=lambda: SandboxSettings())
    goal: GoalSettings = Field(default_factory=lambda: GoalSettings())
    review: ReviewSettings = Field(default_factory=lambda: ReviewSettings())
    guards: GuardSettings = Field(default_factory=lambda: GuardSettings())
    mixture: MixtureSettings = Field(default_factory=lambda: MixtureSettings())
    curriculum: CurriculumSettings = Field(default_factory=lambda: CurriculumSettings())
    balance: BalanceSettings = Field(default_factory=lambda: BalanceSettings())
    forgetting: ForgettingSettings = Field(default_factory=lambda: ForgettingSettings())

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages by name: a repeated one has a number, e.g. ``sft-2``."""
        return stage_names(self.stages)
