"""The library in a few functions: what the command line does, for scripts and notebooks.

>>> import educe
>>> result = educe.train("recipes/quickstart.toml", ["run.name=mine"])       # doctest: +SKIP
>>> educe.sample(str(result.folder), ["What is 2 plus 3?"])                    # doctest: +SKIP
>>> educe.score("rg/gcd/tiny", 0, "4")                                         # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from educe.config.loader import LoadedRecipe, load_recipe
from educe.config.settings import DomainSettings, Recipe
from educe.core.stopping import StopSignal
from educe.core.types import Message, Score, Split
from educe.observability.timing import SILENT, PhaseTimer

if TYPE_CHECKING:
    from educe.observability.run_store import RunStore
    from educe.pipeline import Callback, RunResult
    from educe.session import Session

Announce = Callable[[str], None]
LiveMode = bool | Literal["plain"]

# Rounding of bf16 logits alone makes 0.001 to 0.013 on batches of short answers (docs/log.md).
BF16_MISMATCH = 0.03
INT8_MISMATCH = 0.25


def train(
    recipe: str | Path | LoadedRecipe | Recipe,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    announce: Announce = print,
    live: LiveMode = False,
    stop: StopSignal | None = None,
) -> RunResult:
    """Run a recipe: preflight, then its stages, with checkpoints and a run store.

    Args:
        recipe: a TOML file, or a recipe made in Python.
        overrides: ``section.key=value`` texts, for a file.
        resume: continue the run of that name where its newest checkpoint is.
        callbacks: called with a ``StepInfo`` after each training step.
        live: show the live terminal view; "plain" prints one line a step instead.
        stop: ask it to stop from another thread or a callback.

    Raises:
        EduceError: everything that preflight finds, before torch is imported.
    """
    from educe.observability.sinks import check_sinks
    from educe.preflight import preflight
    from educe.run_folder import prepare_folder

    loaded = as_loaded(recipe, overrides)
    preflight(loaded)
    check_sinks(loaded.recipe.run.sinks)
    folder, store = prepare_folder(loaded, resume=resume)
    options: dict[str, Any] = {
        "folder": folder,
        "store": store,
        "callbacks": callbacks,
        "announce": announce,
        "live": live,
        "stop": stop or StopSignal(),
    }
    if loaded.recipe.run.ranks > 1:
        from educe.ranks import train_ranks

        return train_ranks(
            loaded.recipe, lambda group: train_here(loaded, collectives=group, **options)
        )
    return train_here(loaded, **options)


def train_here(
    loaded: LoadedRecipe,
    *,
    folder: Path,
    store: RunStore,
    announce: Announce,
    live: LiveMode,
    stop: StopSignal,
    callbacks: Sequence[Callback] = (),
    collectives: Any = None,
    timeline: PhaseTimer | None = None,
) -> RunResult:
    """Run all stages in this process; the recipe has passed preflight, the folder is ready."""
    from educe.observability.alarms import AlarmLimits, AlarmWatch
    from educe.observability.live import LiveView
    from educe.observability.sinks import open_sinks
    from educe.observability.tee import TeeRecorder
    from educe.pipeline import Pipeline

    guests: list[Any] = open_sinks(loaded.recipe.run.sinks, store)
    if live:
        guests.append(LiveView(plain=live == "plain"))
    sampling = loaded.recipe.engine.dtype
    limits = AlarmLimits()
    if "bfloat16" in (sampling, loaded.recipe.model.compute_dtype):
        limits = AlarmLimits(mismatch=BF16_MISMATCH)
    if sampling == "int8":
        limits = AlarmLimits(mismatch=INT8_MISMATCH)
    recorder = TeeRecorder(store, *guests, watch=AlarmWatch(limits))
    error: BaseException | None = None
    try:
        with stop.on_signals(announce):
            return Pipeline(
                loaded,
                recorder,
                folder,
                stop=stop,
                callbacks=callbacks,
                announce=announce,
                collectives=collectives,
                timeline=timeline or SILENT,
            ).run()
    except BaseException as raised:
        error = raised
        raise
    finally:
        recorder.close()
        store.close(error)


def as_loaded(
    recipe: str | Path | LoadedRecipe | Recipe, overrides: Sequence[str] = ()
) -> LoadedRecipe:
    """Return a recipe with provenance, whatever form it came in."""
    if isinstance(recipe, LoadedRecipe):
        return recipe
    if isinstance(recipe, Recipe):
        return LoadedRecipe(recipe)
    return load_recipe(str(recipe), list(overrides))


def open_session(model: str, recipe: str | Path | LoadedRecipe | Recipe, **options: Any) -> Session:
    """Return a session of a model (name, folder or run) over a recipe's domains; close it."""
    from educe import session

    return session.open_session(model, recipe, **options)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion: its text, tokens and log-probabilities."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


def sample(
    model: str,
    prompts: Sequence[str | Sequence[Message]],
    *,
    num_samples: int = 1,
    max_tokens: int = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    announce: Announce = print,
) -> list[list[Sample]]:
    """Return ``num_samples`` completions of each prompt.

    Args:
        model: known name, model folder, run folder or run name.
        prompts: user texts, or whole conversations.
    """
    from educe.core.protocols import GenerateRequest, SamplingParameters
    from educe.core.seeds import derive
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.load import chat_format, load
    from educe.session import model_of, set_threads

    set_threads(0)
    loaded = load(model_of(model)[0], announce=announce)
    chat = chat_format(loaded)
    engine = EmbeddedEngine(loaded, stop_token_ids=chat.stop_token_ids, decode=chat.decode)
    requests = []
    for number, prompt in enumerate(prompts):
        messages = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
        tokens = chat.prompt_tokens(messages)
        for i in range(num_samples):
            parameters = SamplingParameters(
                max_tokens, temperature, top_k, top_p, seed_key=derive("sample", seed, number, i)
            )
            requests.append(GenerateRequest(f"{number}/{i}", tokens, parameters, str(number)))
    done = [
        Sample(c.text, c.token_ids, c.logprobs, str(c.stop_reason))
        for c in engine.generate(requests)
    ]
    return [done[i : i + num_samples] for i in range(0, len(done), num_samples)]


def score(
    domain: str,
    index: int,
    completion: str,
    *,
    split: Split | str = Split.TRAIN,
    settings: DomainSettings | None = None,
    timeout_s: float = 20.0,
) -> Score:
    """Return the score of a completion of a domain's task, judged in a killable worker."""
    from educe.domains.registry import load_domain
    from educe.rollout.scoring import ScoringPool

    own = settings or DomainSettings()
    loaded = load_domain(domain, own)
    task = loaded.task(Split(split), index)
    with ScoringPool({domain: own}, num_workers=1, timeout_s=timeout_s) as pool:
        transcript = [*task.messages, Message("assistant", completion)]
        pool.submit_score("one", task, loaded.initial_state(task), transcript)
        while True:
            for _, outcome in pool.poll(1.0):
                if isinstance(outcome, Score):
                    return outcome
