"""Where the RL loop's groups come from: this process, or rollout workers in others."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from educe.config.settings import PrefetchSettings, Recipe
from educe.core.types import JSON, Group, TaskRequest
from educe.rollout.integrity import check_integrity
from educe.rollout.ledger import Ledger
from educe.rollout.published_weights import checksums, load_checked
from educe.rollout.remote import FleetSettings, RemoteRollout
from educe.session import Session, build_session

if TYPE_CHECKING:
    from educe.sandbox import Sandbox

_SERVE = "educe.sources:serve"


@dataclass(slots=True)
class LocalSource:
    """Samples with the session's own engine, which reads the trainer's tensors."""

    session: Session

    def run_requests(self, requests: Sequence[TaskRequest], ledger: Ledger) -> Iterable[Group]:
        for request in requests:
            ledger.mark_running(request.request_id)
        return self.session.run_requests(requests)

    def publish(self, version: int) -> None:
        self.session.engine.publish(version)

    def rest(self) -> None:
        self.session.engine.rest()


class RemoteSource:
    """Samples in ``engine.workers`` processes, each with its own engine and scorers.

    Weights travel as a safetensors file: RUN/published/vN, the newest two kept.
    """

    def __init__(self, recipe: Recipe, session: Session, folder: Path, version: int) -> None:
        self._session = session
        self._folder = folder / "published"
        self._recipe = recipe
        self._version = version
        self._settings = FleetSettings(
            num_workers=recipe.engine.workers, log_path=folder / "rollout-workers.log"
        )
        self._fleet: RemoteRollout | None = None

    def run_requests(self, requests: Sequence[TaskRequest], ledger: Ledger) -> Iterator[Group]:
        fleet = self._fleet_for(ledger)
        allowed = self._recipe.sandbox.in_process_tests
        if self._session.sandbox is not None:
            self._session.sandbox.ensure_alive()
        for request in requests:
            fleet.submit(request)
        num_left = len(requests)
        while num_left:
            self._session.runner.check()
            for group in fleet.poll(0.2):
                num_left -= 1
                yield check_integrity(group, in_process_tests=allowed)

    def publish(self, version: int) -> None:
        self._session.engine.publish(version)
        self._version = version
        if self._fleet is not None:
            self._fleet.publish(version, self._write())

    def rest(self) -> None:
        """The workers go on; this process's own engine samples nothing meanwhile."""
        self._session.engine.rest()

    def worker_pids(self) -> list[int]:
        """Return the live workers' process ids."""
        return [] if self._fleet is None else list(self._fleet.worker_versions())

    def _fleet_for(self, ledger: Ledger) -> RemoteRollout:
        if self._fleet is None:
            shared = self._session.sandbox
            address = None if shared is None else shared.address
            options = {
                "recipe": self._recipe.model_dump(mode="json"),
                "sandbox": None if address is None else address.to_json(),
            }
            self._fleet = RemoteRollout(_SERVE, options, ledger=ledger, settings=self._settings)
            self._fleet.publish(self._version, self._write())
        return self._fleet

    def _write(self) -> JSON:
        from safetensors.torch import save_file

        from educe.models.load import merged_state

        target = self._folder / f"v{self._version}"
        beside = target.with_suffix(".part")
        beside.mkdir(parents=True, exist_ok=True)
        state = {n: t.detach().cpu().contiguous() for n, t in self._tied(merged_state).items()}
        save_file(state, beside / "model.safetensors")
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        # A worker may still be reading the version before.
        for old in self._folder.glob("v*"):
            if old.name[1:].isdigit() and int(old.name[1:]) < self._version - 1:
                shutil.rmtree(old, ignore_errors=True)
        return {
            "file": str((target / "model.safetensors").resolve()),
            "checksums": checksums(state),
        }

    def _tied(self, merged_state: Any) -> dict[str, Any]:
        """Return the state with each storage once: tied heads are not written twice."""
        seen: set[int] = set()
        out = {}
        for name, tensor in merged_state(self._session.model).items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                out[name] = tensor
        return out

    def close(self) -> None:
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EngineServer:
    """What runs in a rollout worker: a session fed with orders (see ``GroupServer``)."""

    def __init__(self, recipe: Recipe, sandbox: Sandbox | None = None) -> None:
        self._session = build_session(recipe, sandbox=sandbox, announce=print)

    def submit(self, request: TaskRequest) -> None:
        self._session.runner.submit(request)

    def step(self) -> list[Group]:
        return self._session.runner.step()

    @property
    def num_unfinished(self) -> int:
        return self._session.runner.num_unfinished

    def publish(self, version: int, weights: JSON) -> None:
        from safetensors.torch import load_file

        own = self._session.model.causal.state_dict()
        load_checked(own, load_file(weights["file"]), weights["checksums"])
        self._session.engine.publish(version)

    def close(self) -> None:
        self._session.close()


def serve(options: Any) -> EngineServer:
    """Build a rollout worker's server from its recipe."""
    recipe = Recipe.model_validate(options["recipe"])
    # Orders reach a worker one at a time: there is nothing that it could make ahead.
    recipe = recipe.model_copy(update={"prefetch": PrefetchSettings()})
    if options["sandbox"] is None:
        return EngineServer(recipe)
    from educe.sandbox import open_sandbox
    from educe.sandbox.connection import Address

    address = Address.from_json(options["sandbox"])
    return EngineServer(recipe, open_sandbox(minimum=recipe.sandbox.minimum, address=address))
