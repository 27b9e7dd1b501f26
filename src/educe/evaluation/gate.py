"""Promote, hold or roll back: superiority on targets, non-inferiority on every guardrail, latched.

A checkpoint is promoted when each target is shown to be better *and* each guardrail is shown to be
no worse than its margin. Absence of evidence holds. A guardrail (or target) shown to be worse rolls
back. Decisions go to an append-only ledger: a promotion or a roll-back of the same pair under the
same policy is never taken back by more data, and each further look at growing data pays for itself
(look k is tested at alpha / (k (k + 1)), which sums to alpha).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.compare import Comparison, DomainComparison, compare
from educe.evaluation.records import EvalResult
from educe.evaluation.statistics import Estimate, holm
from educe.evaluation.statistics.estimates import normal_quantile

MACRO = "macro"


class Decision(StrEnum):
    """What to do with the new checkpoint."""

    PROMOTE = "promote"
    HOLD = "hold"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a release must show.

    Attributes:
        targets: domain names, globs or ``macro``; each must be better.
        guardrails: name, glob or ``macro`` to margin: how much worse is tolerable, in score.
        alpha: chance of promoting on a target that is not better, over all looks; the same for
            passing a guardrail that is worse than its margin.
        max_lost: share of completions without a score up to which a decision may be taken.
    """

    targets: tuple[str, ...]
    guardrails: Mapping[str, float] = field(default_factory=dict)
    alpha: float = 0.05
    max_lost: float = 0.05

    def __post_init__(self) -> None:
        if not self.targets:
            raise EduceError(f"a gate needs at least one target: a domain, a glob or {MACRO!r}")
        if not 0 < self.alpha < 1:
            raise EduceError(f"alpha must lie in (0, 1), got {self.alpha}")
        wrong = {name: m for name, m in self.guardrails.items() if not 0 < m <= 1}
        if wrong:
            raise EduceError(f"guardrail margins must lie in (0, 1], got {wrong}")

    @property
    def digest(self) -> str:
        return _digest([list(self.targets), dict(self.guardrails), self.alpha, self.max_lost])


def read_policy(path: Path) -> Policy:
    """Read a policy from TOML: ``targets``, ``[guardrails]``, ``alpha``, ``max_lost``."""
    import tomllib

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise EduceError(f"{path}: cannot read the policy: {error}") from error
    known = ("targets", "guardrails", "alpha", "max_lost")
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise EduceError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    targets = raw.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise EduceError(f"{path}: targets must be a list of names, got {targets!r}")
    guardrails = raw.get("guardrails", {})
    if not isinstance(guardrails, dict):
        raise EduceError(f"{path}: [guardrails] must be a table of name = margin")
    return Policy(
        tuple(targets),
        {name: _number(path, f"guardrails.{name}", v) for name, v in guardrails.items()},
        _number(path, "alpha", raw.get("alpha", 0.05)),
        _number(path, "max_lost", raw.get("max_lost", 0.05)),
    )


def _number(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EduceError(f"{path}: {key} must be a number, got {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Check:
    """One target or guardrail: what was asked, what was found. ``p_value`` is adjusted (Holm)."""

    name: str
    role: str
    margin: float
    difference: float
    low: float
    high: float
    p_value: float
    p_worse: float
    passes: bool
    is_worse: bool


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A decision with everything that it rests on."""

    decision: Decision
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    look: int
    level: float
    is_latched: bool
    pair: str
    policy: str
    data: str

    def to_json(self) -> dict[str, JSON]:
        return {**asdict(self), "decision": str(self.decision)}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> GateDecision:
        return GateDecision(
            **{
                **raw,
                "decision": Decision(raw["decision"]),
                "reasons": tuple(raw["reasons"]),
                "checks": tuple(Check(**c) for c in raw["checks"]),
            }
        )


class GateLedger:
    """The append-only file of decisions; None as path keeps them in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.decisions: list[GateDecision] = []
        if path is not None and path.exists():
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                try:
                    self.decisions.append(GateDecision.from_json(json.loads(line)))
                except (ValueError, KeyError, TypeError) as error:
                    raise EduceError(
                        f"{path}:{number}: not a recorded decision ({error}); a ledger is only "
                        f"ever appended to, so restore it instead of editing it"
                    ) from error

    def of(self, pair: str, policy: str) -> list[GateDecision]:
        return [d for d in self.decisions if d.pair == pair and d.policy == policy]

    def add(self, decision: GateDecision) -> None:
        self.decisions.append(decision)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(json.dumps(decision.to_json()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())


def decide(
    before: EvalResult, after: EvalResult, policy: Policy, ledger: GateLedger | None = None
) -> GateDecision:
    """Decide on ``after`` in place of ``before``.

    Without a ledger this is one look at level alpha. With one, the same data gives the recorded
    decision again, more data is a further look, and a promotion or roll-back once recorded stays
    (``is_latched``).

    Raises:
        EduceError: a name of the policy matches no domain, or the results cannot be compared.
    """
    pair = _digest([_identity(before), _identity(after)])
    data = _digest([[r.key, r.value] for side in (before, after) for r in side.rows])
    earlier = [] if ledger is None else ledger.of(pair, policy.digest)
    for past in earlier:
        if past.decision is not Decision.HOLD or past.data == data:
            return replace(past, is_latched=True)
    look = len(earlier) + 1
    level = policy.alpha if ledger is None else policy.alpha / (look * (look + 1))
    decision = _judge(before, after, policy, look, level, (pair, data))
    if ledger is not None:
        ledger.add(decision)
    return decision


def _identity(result: EvalResult) -> JSON:
    return [result.label, result.settings.get("identity")]


def _judge(
    before: EvalResult,
    after: EvalResult,
    policy: Policy,
    look: int,
    level: float,
    keys: tuple[str, str],
) -> GateDecision:
    comparison = compare(before, after)
    targets = [(n, 0.0) for n in _names(policy.targets, comparison)]
    guards = [
        (name, margin)
        for pattern, margin in policy.guardrails.items()
        for name in _names([pattern], comparison)
    ]
    checks = _checks(comparison, targets, "target", level) + _checks(
        comparison, guards, "guardrail", level
    )
    reasons = [_reason(c) for c in checks if c.is_worse or not c.passes]
    lost = [
        f"{side.label}: {side.counts.lost_share:.1%} of completions have no score"
        for side in (comparison.before, comparison.after)
        if side.counts.lost_share > policy.max_lost
    ]
    if any(c.is_worse for c in checks):
        decision = Decision.ROLL_BACK
    elif lost or not all(c.passes for c in checks):
        decision = Decision.HOLD
    else:
        decision = Decision.PROMOTE
        reasons = ["every target is better and no guardrail is worse than its margin"]
    return GateDecision(
        decision, tuple(lost + reasons), tuple(checks), look, level, False, keys[0],
        policy.digest, keys[1],
    )  # fmt: skip


def _names(patterns: Sequence[str], comparison: Comparison) -> list[str]:
    known = [d.domain for d in comparison.domains]
    found: list[str] = []
    for pattern in patterns:
        matches = [MACRO] if pattern == MACRO else fnmatch.filter(known, pattern)
        if not matches:
            raise EduceError(
                f"the policy names {pattern!r}, which matches no evaluated domain; evaluated are "
                f"{', '.join(known[:8])}{' …' if len(known) > 8 else ''}"
            )
        found += matches
    return list(dict.fromkeys(found))


def _checks(
    comparison: Comparison, names: Sequence[tuple[str, float]], role: str, level: float
) -> list[Check]:
    """Test each name one-sided, Holm-adjusted within the role in both directions.

    A target passes only if *all* do, so its own p-value needs no adjustment; the same holds for
    guardrails. Rolling back on *any* one does need it.
    """
    by_name = {d.domain: d for d in comparison.domains}
    tested = []
    for name, margin in names:
        estimate, better, worse = _tests(by_name.get(name), comparison, margin)
        tested.append((name, margin, estimate, better, worse))
    adjusted = holm([worse for *_, worse in tested])
    return [
        Check(
            name, role, margin,
            *((e.value, e.low, e.high) if e else (float("nan"),) * 3),
            p_value=better, p_worse=float(worse), passes=better <= level,
            is_worse=bool(worse <= level),
        )
        for (name, margin, e, better, _), worse in zip(tested, adjusted, strict=True)
    ]  # fmt: skip


def _tests(
    domain: DomainComparison | None, comparison: Comparison, margin: float
) -> tuple[Estimate | None, float, float]:
    """Return (estimate, p of "better than -margin", p of "worse")."""
    if domain is not None:
        if domain.difference is None:
            return None, 1.0, 1.0
        d = domain.difference
        passes = d.p_greater if margin == 0 else _shifted(d.estimate, margin)
        return d.estimate, passes, d.p_less
    macro = comparison.macro_difference
    if macro is None or not macro.standard_error > 0:
        return macro, 1.0, 1.0
    return macro, _shifted(macro, margin), _shifted(_mirrored(macro), 0.0)


def _shifted(estimate: Estimate, margin: float) -> float:
    """One-sided p of difference <= -margin, from the interval's own lower side.

    The lower limit of these intervals is (estimate - quantile x error), skewed where scores are;
    its distance gives the error on that side.
    """
    from scipy import special

    z = normal_quantile(0.5 + estimate.level / 2)
    error = (estimate.value - estimate.low) / z
    if error <= 0:
        return 1.0
    return float(special.ndtr(-(estimate.value + margin) / error))


def _mirrored(estimate: Estimate) -> Estimate:
    return replace(estimate, value=-estimate.value, low=-estimate.high, high=-estimate.low)


def _reason(check: Check) -> str:
    points = (
        f"{100 * check.difference:+.1f} points [{100 * check.low:+.1f}, {100 * check.high:+.1f}]"
    )
    if check.is_worse:
        return f"{check.role} {check.name} is worse: {points}"
    if np.isnan(check.difference):
        return f"{check.role} {check.name}: no task has a score on both sides"
    if check.role == "target":
        return f"target {check.name} is not shown to be better: {points}"
    margin = f"{100 * check.margin:.1f} points"
    return f"guardrail {check.name} is not shown to be within {margin}: {points}"


def _digest(value: JSON) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
