"""The gradient of each cluster of domains, as a sketch, taken while the step's own gradient grows.

The step's packs are ordered by cluster; between two clusters the gradient that has gathered so far
is sketched. Sketches are linear, so the difference of two is the sketch of what came in between:
no second backward, no copy of a gradient. The sum of all is the step's gradient as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from educe.core.seeds import derive, uniforms
from educe.parallel.collectives import Collectives
from educe.rollout.packing import FloatArray, TrainingSample
from educe.scheduling.gradients import CountSketch


class GradientSketcher:
    """Sketches the gradients of a model's parameters.

    Of more weights than ``sample`` a fixed part is looked at, the same of every tensor, spread
    evenly with a random offset in each stretch; its values are scaled so that inner products stay
    unbiased.

    Args:
        shapes: number of weights of each parameter, in order.
        width: K, numbers of a sketch.
        sample: weights looked at, at most about so many.
        seed: of places and signs.
    """

    def __init__(self, shapes: Sequence[int], width: int, sample: int, seed: int) -> None:
        total = sum(shapes)
        part = min(1.0, sample / max(1, total))
        self._places: list[torch.Tensor | None] = []
        self._scales: list[float] = []
        size = 0
        for number, count in enumerate(shapes):
            taken = count if part == 1.0 else max(1, round(count * part))
            size += taken
            self._scales.append((count / taken) ** 0.5)
            self._places.append(None if taken == count else _spread(count, taken, (seed, number)))
        self._sketch = CountSketch(size, width, seed)
        self.width = width

    @torch.no_grad()
    def __call__(self, parameters: Sequence[torch.nn.Parameter]) -> FloatArray:
        """Return the sketch (K,) of ``.grad``; a missing one counts as zero."""
        pieces = []
        for parameter, places, scale in zip(parameters, self._places, self._scales, strict=True):
            if parameter.grad is None:
                size = parameter.numel() if places is None else len(places)
                pieces.append(np.zeros(size))
                continue
            flat = parameter.grad.reshape(-1)
            picked = flat if places is None else flat[places.to(flat.device)]
            pieces.append(picked.double().cpu().numpy() * scale)
        return self._sketch(np.concatenate(pieces))


def _spread(count: int, taken: int, key: tuple[int, int]) -> torch.Tensor:
    """Return ``taken`` different places below ``count``, one in each of as many stretches."""
    keys = np.array([derive("gradient places", *key)], dtype=np.uint64)
    offsets = uniforms(keys, np.arange(taken, dtype=np.uint64))
    places = np.floor((np.arange(taken) + offsets) * (count / taken)).astype(np.int64)
    return torch.as_tensor(np.minimum(places, count - 1))


class GradientProbe:
    """Measures one step (see ``step.accumulate_gradients``).

    Args:
        sketcher: for the parameters of the step.
        names: of the R clusters.
        clusters: by domain; samples of no cluster are trained and not measured.
    """

    def __init__(
        self, sketcher: GradientSketcher, names: Sequence[str], clusters: Mapping[str, str]
    ) -> None:
        self._sketcher = sketcher
        self._rows = {name: row for row, name in enumerate(names)}
        self._clusters = clusters
        self._before: FloatArray | None = None
        self._found: list[FloatArray] = []
        self.halves_R2K = np.zeros((len(names), 2, sketcher.width))

    def parts(
        self, samples: Sequence[TrainingSample], mine: Sequence[TrainingSample]
    ) -> list[list[TrainingSample]]:
        """Return this rank's samples in 2 R + 1 parts: each cluster's two halves, then the rest.

        A cluster's groups go to its halves in turn, counted over the samples of all ranks.
        """
        seen: dict[int, set[int]] = {}
        where: dict[int, int] = {}
        for sample in samples:
            row = self._row(sample)
            if row is not None and sample.group not in where:
                groups = seen.setdefault(row, set())
                where[sample.group] = 2 * row + len(groups) % 2
                groups.add(sample.group)
        parts: list[list[TrainingSample]] = [[] for _ in range(2 * len(self._rows) + 1)]
        for sample in mine:
            row = self._row(sample)
            parts[-1 if row is None else where[sample.group]].append(sample)
        return parts

    def _row(self, sample: TrainingSample) -> int | None:
        cluster = self._clusters.get(sample.origin) if isinstance(sample.origin, str) else None
        return None if cluster is None else self._rows[cluster]

    def take(
        self, part: Sequence[TrainingSample], parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        """Take in that the gradient has grown by a part."""
        width = self._sketcher.width
        before = self._before if self._before is not None else np.zeros(width)
        after = self._sketcher(parameters) if part else before
        with np.errstate(invalid="ignore"):  # a step that is not finite is found elsewhere
            self._found.append(after - before)
        self._before = after

    def finish(self, collectives: Collectives) -> None:
        """Sum what all ranks found, into ``halves_R2K``."""
        own = np.stack(self._found[: 2 * len(self._rows)])
        if collectives.world_size > 1:
            own = np.sum([np.asarray(one) for one in collectives.gather(own.tolist())], axis=0)
        self.halves_R2K = own.reshape(self.halves_R2K.shape)
