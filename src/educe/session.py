"""A loaded model with its engine, domains and scorers: what sampling, evaluation and RL share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from educe.algorithms.catalogue import Bundle
from educe.config.loader import LoadedRecipe, load_recipe
from educe.config.settings import DomainSettings, Recipe
from educe.core.errors import EduceError
from educe.core.protocols import Domain
from educe.core.types import JSON, Group, TaskRequest
from educe.domains.registry import load_domain, resolve
from educe.evaluation.runner import Limits
from educe.preflight.devices import num_cores
from educe.preflight.plan import bundle_of
from educe.preparation import open_prefetch
from educe.rollout.integrity import check_integrity

if TYPE_CHECKING:
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.chat import ChatFormat
    from educe.models.load import LoadedModel
    from educe.rollout.prefetch import Prefetch
    from educe.rollout.runner import PreparePrompt, RolloutRunner
    from educe.rollout.scoring import Scoring
    from educe.sandbox import Sandbox

Announce = Callable[[str], None]


def resolved_domains(recipe: Recipe) -> tuple[dict[str, DomainSettings], dict[str, Domain]]:
    """Return the recipe's domains with globs expanded: their settings and the domains."""
    settings = resolve(recipe.domains)
    return settings, {name: load_domain(name, own) for name, own in settings.items()}


def resolved_bundles(recipe: Recipe, domains: Mapping[str, DomainSettings]) -> dict[str, Bundle]:
    """Return each domain's algorithm, by the rule that preflight and ``educe explain`` state."""
    return {name: bundle_of(recipe, own) for name, own in domains.items()}


def eval_limits(
    recipe: Recipe, settings: Mapping[str, DomainSettings], domains: Mapping[str, Domain]
) -> dict[str, Limits]:
    """Return each domain's token and turn limits in evaluations."""
    limits = {}
    for name, own in settings.items():
        tokens = (
            own.max_completion_tokens
            or recipe.rl.max_completion_tokens
            or domains[name].spec.max_completion_tokens
        )
        tokens = max(tokens, recipe.eval.least_completion_tokens)
        limits[name] = Limits(max_completion_tokens=tokens, max_turns=own.max_turns or None)
    return limits


def set_threads(threads: int) -> None:
    """Give torch its CPU threads; 0 is one per core that this process may use."""
    import torch

    if threads < 0:
        raise EduceError(f"threads must be 0 (one per core) or more, got {threads}")
    torch.set_num_threads(threads or num_cores())


@dataclass(slots=True)
class Session:
    """Everything that turns requests into scored groups. Close it, or use ``with``.

    ``label`` and ``identity`` name what is loaded (see ``evaluation.sessions.EvalSession``).
    ``sandbox`` runs the programs of all reward workers; None when no domain needs one.
    ``prefetch`` makes tasks and examples ahead; None when the recipe asks for no such processes.
    """

    recipe: Recipe
    label: str
    model: LoadedModel
    chat: ChatFormat
    engine: EmbeddedEngine
    domains: Mapping[str, Domain]
    domain_settings: Mapping[str, DomainSettings]
    scoring: Scoring
    runner: RolloutRunner
    identity: JSON = None
    limits: Mapping[str, Limits] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    owns_sandbox: bool = False
    prefetch: Prefetch | None = None

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterable[Group]:
        if self.sandbox is not None and self.owns_sandbox:
            self.sandbox.ensure_alive()
        allowed = self.recipe.sandbox.in_process_tests
        for group in self.runner.run_requests(requests):
            yield check_integrity(group, in_process_tests=allowed)

    def with_prompt(self, prepare: PreparePrompt, label: str) -> Session:
        """Return a view of this session that words its prompts differently (shares the rest)."""
        from dataclasses import replace

        from educe.rollout.runner import RolloutRunner

        runner = RolloutRunner(
            self.engine,
            self.chat,
            self.domains,
            self.scoring,
            seed=self.runner.seed,
            context_length=self.runner.context_length,
            prepare=prepare,
            max_open=self.runner.max_open,
            check=self.runner.check,
        )
        return replace(self, runner=runner, label=label, identity=[self.identity, label])

    def close(self) -> None:
        self.scoring.close()
        if self.prefetch is not None:
            self.prefetch.close()
        if self.sandbox is not None and self.owns_sandbox:
            self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_session(
    recipe: Recipe,
    *,
    model_name: str | None = None,
    label: str = "",
    trainable: bool = False,
    domains: tuple[Mapping[str, DomainSettings], Mapping[str, Domain]] | None = None,
    sandbox: Sandbox | None = None,
    wrap_scoring: Callable[[Scoring], Scoring] = lambda scoring: scoring,
    check: Callable[[], None] = lambda: None,
    log_path: Path | None = None,
    announce: Announce = print,
) -> Session:
    """Load a model and put an engine, domains and scorers around it.

    Args:
        model_name: replaces the recipe's model.
        trainable: add the recipe's adapters and gradient checkpointing.
        domains: settings and domains, when they are loaded already.
        sandbox: shared with whoever opened it; None opens one when a domain runs code.
        wrap_scoring: e.g. a journal around the scorers.
        check: see ``RolloutRunner``.
        log_path: where reward workers' own output goes; None is stderr.
    """
    from educe.models.load import chat_format
    from educe.rollout.prefetch import PreparedTasks
    from educe.rollout.runner import RolloutRunner

    set_threads(recipe.run.threads)
    settings = recipe.model
    name = model_name or settings.name
    model = _load_model(recipe, name, trainable, announce)
    chat = chat_format(
        model, system_prompt=settings.system_prompt, template_path=settings.chat_template
    )
    engine = _build_engine(recipe, model, chat)
    own_settings, own_domains = domains or resolved_domains(recipe)
    shared = sandbox or open_shared_sandbox(recipe, own_domains)
    scoring = open_scoring(recipe, own_settings, log_path, shared)
    if recipe.review.mode != "off":
        from educe.rollout.review import ReviewedScoring

        scoring = ReviewedScoring(scoring, recipe.review)
    scoring = wrap_scoring(scoring)
    runner = RolloutRunner(
        engine,
        chat,
        own_domains,
        scoring,
        seed=recipe.run.seed,
        context_length=settings.context_length or model.context_length,
        max_open=4 * recipe.engine.max_rows,
        check=check,
    )
    prefetch = open_prefetch(recipe, model.folder, runner.context_length, log_path)
    runner.tasks = None if prefetch is None else PreparedTasks(prefetch)
    return Session(
        recipe,
        label or Path(name).name,
        model,
        chat,
        engine,
        own_domains,
        own_settings,
        scoring,
        runner,
        identity=[weights_digest(model), chat.template, chat.system_prompt, recipe.run.seed],
        limits=eval_limits(recipe, own_settings, own_domains),
        sandbox=shared,
        owns_sandbox=shared is not sandbox,
        prefetch=prefetch,
    )


def _load_model(recipe: Recipe, name: str, trainable: bool, announce: Announce) -> LoadedModel:
    from educe.models.load import load

    settings = recipe.model
    return load(
        name,
        dtype=settings.dtype,
        device=settings.device,
        allow_hub=settings.allow_hub,
        lora={**settings.lora.model_dump(), "seed": recipe.run.seed} if trainable else None,
        rope=settings.rope.model_dump(),
        checkpointing=trainable and settings.gradient_checkpointing,
        offload=settings.activation_offload,
        announce=announce,
    )


def _build_engine(recipe: Recipe, model: LoadedModel, chat: ChatFormat) -> EmbeddedEngine:
    import torch

    from educe.engines.embedded import EmbeddedEngine

    settings = recipe.engine
    return EmbeddedEngine(
        model,
        stop_token_ids=chat.stop_token_ids,
        decode=chat.decode,
        max_rows=settings.max_rows,
        exact=recipe.run.mode == "exact",
        prefill_tokens=settings.prefill_tokens,
        dtype=None if settings.dtype == "auto" else getattr(torch, settings.dtype),
        forward=settings.forward,
        drafts=settings.drafts,
        graphs=settings.cuda_graphs,
    )


def open_shared_sandbox(recipe: Recipe, domains: Mapping[str, Domain]) -> Sandbox | None:
    """Open the one sandbox of all reward workers; None when no domain runs code.

    Raises:
        SandboxError: this host enforces less than the recipe's ``sandbox.minimum``.
    """
    if not any(domain.spec.executes_code for domain in domains.values()):
        return None
    from educe.sandbox import open_sandbox

    settings = recipe.sandbox
    return open_sandbox(minimum=settings.minimum, num_parallel=settings.num_parallel)


def open_scoring(
    recipe: Recipe,
    domains: Mapping[str, DomainSettings],
    log_path: Path | None,
    sandbox: Sandbox | None,
) -> Scoring:
    from educe.rollout.scoring import ScoringPool

    return ScoringPool(
        dict(domains),
        num_workers=recipe.rl.score_workers,
        timeout_s=recipe.rl.score_timeout_s,
        sandbox=sandbox,
        sandbox_minimum=recipe.sandbox.minimum,
        log_path=log_path,
    )


def weights_digest(model: Any) -> str:
    """Return a digest of a sample of every tensor, to tell models apart."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in sorted(model.causal.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // 64)
        digest.update(name.encode())
        digest.update(flat[::stride].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def model_of(name: str, out: str = "runs") -> tuple[str, str]:
    """Return (model name or folder, label) of a model, a run folder or a run's name.

    Raises:
        EduceError: for a run that has no finished weights yet.
    """
    for folder in (Path(name), Path(out) / name):
        if (folder / "models").is_dir() or (folder / "run.json").exists():
            return str(result_folder(folder)), folder.name
    return name, Path(name).name


def result_folder(run: Path) -> Path:
    """Return the newest stage's saved model of a run."""
    folders = sorted(
        (f for f in (run / "models").glob("*") if (f / "config.json").exists()),
        key=lambda f: (f / "config.json").stat().st_mtime_ns,
    )
    if not folders:
        raise EduceError(
            f"{run} has no finished stage yet, so there are no weights to load; "
            "let it finish, or continue it with --resume"
        )
    return folders[-1]


def open_session(model: str, recipe: str | Path | LoadedRecipe | Recipe, **options: Any) -> Session:
    """Return a session of a model (name, folder or run) over a recipe's domains."""
    if isinstance(recipe, (str, Path)):
        recipe = load_recipe(str(recipe))
    plain = recipe.recipe if isinstance(recipe, LoadedRecipe) else recipe
    name, label = model_of(model, plain.run.out)
    return build_session(plain, model_name=name, label=label, **options)
