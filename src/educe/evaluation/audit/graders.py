"""False accepts and false rejects of a verifier, with intervals, and against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from educe.core.errors import DomainError
from educe.core.protocols import Domain, DomainSpec, Services
from educe.core.types import JSON, Message, Split, Task, assistant
from educe.domains.check import is_above_floor, play
from educe.domains.copies import copied_parts, picked_numbers
from educe.evaluation.audit.attempts import Attempt, attempts_for
from educe.evaluation.statistics import Estimate, clopper_pearson

_MAX_EXAMPLES = 12
_OTHERS = 12
_COPIED_TASKS = 64
_COPIES = ("copy", "pick")
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FormCount:
    """What became of one form of attempt. ``failed``: errors and unscored attempts."""

    group: str
    form: str
    must: str
    is_certain: bool
    count: int
    mistakes: int
    failed: int

    def to_json(self) -> dict[str, JSON]:
        return {n: getattr(self, n) for n in self.__slots__}


@dataclass(frozen=True, slots=True)
class GraderAudit:
    """One domain's audit.

    Attributes:
        false_accept: of attempts that are certainly wrong; None without any.
        false_reject: of forms of the gold; None without any.
        suspects: attempts that may be wrong and were accepted, copies of the prompt aside.
        floor: the domain's; copies may be paid as often as that.
        examples: the mistakes, for people: (group, form, task, text, reason).
    """

    domain: str
    num_tasks: int
    false_accept: Estimate | None
    false_reject: Estimate | None
    forms: tuple[FormCount, ...]
    suspects: int
    num_failed: int
    examples: tuple[Mapping[str, JSON], ...] = ()
    skipped: str = ""
    floor: float = 0.0

    @property
    def paid_copies(self) -> tuple[FormCount, ...]:
        """Copies of the prompt that are accepted more often than the floor allows."""
        copies = [f for f in self.forms if f.group == "copy" and f.count > f.failed]
        return tuple(
            f
            for f in copies
            if is_above_floor(f.mistakes / (f.count - f.failed), f.count - f.failed, self.floor)
        )

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "num_tasks": self.num_tasks,
            "floor": self.floor,
            "false_accept": None if self.false_accept is None else self.false_accept.to_json(),
            "false_reject": None if self.false_reject is None else self.false_reject.to_json(),
            "forms": [f.to_json() for f in self.forms],
            "suspects": self.suspects,
            "num_failed": self.num_failed,
            "examples": [dict(e) for e in self.examples],
            "skipped": self.skipped,
        }


@dataclass(slots=True)
class _Tally:
    count: int = 0
    mistakes: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Notes:
    """What an audit gathers while it plays."""

    tallies: dict[tuple[str, str, str, bool], _Tally] = field(default_factory=dict)
    examples: list[Mapping[str, JSON]] = field(default_factory=list)


def audit_grader(
    domain: Domain, *, num_tasks: int = 16, services: Services | None = None, level: float = 0.95
) -> GraderAudit:
    """Try forms of the gold, near misses and attacks on a domain's verifier.

    Copies of the prompt are tried on 64 tasks at least (``num_tasks`` where code is run), and
    compared with the floor by the rule of ``domains.check``: one by one they may be right.

    Anything of value 1 counts as accepted; partial credit does not. Errors of the verifier are
    failures, neither accepts nor rejects.
    """
    services = services or Services()
    spec = domain.spec
    if not spec.has_gold:
        return _skipped(spec.name, "no gold answers to start from")
    if spec.executes_code and services.sandbox is None:
        return _skipped(spec.name, "needs a sandbox, none was given")
    size = domain.size(Split.TRAIN)
    count = num_tasks if size is None else min(num_tasks, size)
    tasks = [domain.task(Split.TRAIN, i) for i in range(count)]
    golds = [_spoken(domain, task) for task in tasks]
    notes = _Notes()
    for i, task in enumerate(tasks):
        others = [g for g in (*golds[i + 1 :], *golds[:i]) if g != golds[i]][:_OTHERS]
        for attempt in attempts_for(task, golds[i], others, spec.kind):
            _try(domain, task, attempt, services, notes)
    _try_copies(domain, count, services, notes)
    return _audit(spec, count, notes, level)


def _try_copies(domain: Domain, num_tasks: int, services: Services, notes: _Notes) -> None:
    size = domain.size(Split.TRAIN)
    count = num_tasks if domain.spec.executes_code else max(num_tasks, _COPIED_TASKS)
    for i in range(count if size is None else min(count, size)):
        task = domain.task(Split.TRAIN, i)
        prompt = task.messages[-1].content
        for group, parts in zip(
            _COPIES, (copied_parts(prompt), picked_numbers(prompt)), strict=True
        ):
            for form, text in parts.items():
                attempt = Attempt(group, form, (assistant(text),), "reject", False)
                _try(domain, task, attempt, services, notes)


def _skipped(name: str, why: str) -> GraderAudit:
    return GraderAudit(name, 0, None, None, (), 0, 0, skipped=why)


def _spoken(domain: Domain, task: Task) -> tuple[Message, ...]:
    return tuple(m for m in domain.demonstration(task) if m.role == "assistant")


def _try(domain: Domain, task: Task, attempt: Attempt, services: Services, notes: _Notes) -> None:
    key = (attempt.group, attempt.form, attempt.must, attempt.is_certain)
    tally = notes.tallies.setdefault(key, _Tally())
    tally.count += 1
    try:
        score = play(domain, task, attempt.messages, services)
    except Exception as error:  # the verifier's own mistake, whatever it raises
        tally.failed += 1
        _remember(notes, task, attempt, f"{type(error).__name__}: {error}"[:200])
        return
    if score.value is None:
        tally.failed += 1
        _remember(notes, task, attempt, f"unscored: {score.reason}"[:200])
        return
    if (score.value >= 1) != (attempt.must == "accept"):
        tally.mistakes += 1
        _remember(notes, task, attempt, f"value {score.value:g}: {score.reason}"[:200])


def _remember(notes: _Notes, task: Task, attempt: Attempt, what: str) -> None:
    seen = sum(e["form"] == attempt.form for e in notes.examples)
    if seen < 2 and len(notes.examples) < 4 * _MAX_EXAMPLES:
        notes.examples.append(
            {
                "group": attempt.group,
                "form": attempt.form,
                "must": attempt.must,
                "is_certain": attempt.is_certain,
                "task": task.task_id,
                "gold": (task.gold or "")[:120],
                "text": attempt.messages[-1].content[:200] if attempt.messages else "",
                "what": what,
            }
        )


def _audit(spec: DomainSpec, num_tasks: int, notes: _Notes, level: float) -> GraderAudit:
    forms = tuple(
        FormCount(*key, t.count, t.mistakes, t.failed) for key, t in sorted(notes.tallies.items())
    )
    certain = [f for f in forms if f.must == "reject" and f.is_certain]
    equal = [f for f in forms if f.must == "accept"]
    return GraderAudit(
        spec.name,
        num_tasks,
        _rate(certain, level),
        _rate(equal, level),
        forms,
        sum(
            f.mistakes
            for f in forms
            if f.must == "reject" and not f.is_certain and f.group not in _COPIES
        ),
        sum(f.failed for f in forms),
        tuple(notes.examples),
        floor=spec.floor,
    )


def _rate(forms: Sequence[FormCount], level: float) -> Estimate | None:
    scored = sum(f.count - f.failed for f in forms)
    return clopper_pearson(sum(f.mistakes for f in forms), scored, level=level) if scored else None


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """What an audit may show. The forms named in ``always`` must always be accepted."""

    max_false_accept: float = 0.0
    max_false_reject: float = 1.0
    always: tuple[str, ...] = ("white space around", "after thinking")


def audit_problems(audit: GraderAudit, limits: AuditLimits | None = None) -> list[str]:
    """Return what is wrong with a verifier by the limits; empty when nothing is."""
    limits = limits or AuditLimits()
    found = []
    if audit.false_accept is not None and audit.false_accept.value > limits.max_false_accept:
        forms = [f.form for f in audit.forms if f.must == "reject" and f.is_certain and f.mistakes]
        found.append(
            f"{audit.domain}: accepts {100 * audit.false_accept.value:.1f} % of what is certainly "
            f"wrong ({', '.join(forms)})"
        )
    if audit.false_reject is not None and audit.false_reject.value > limits.max_false_reject:
        found.append(
            f"{audit.domain}: rejects {100 * audit.false_reject.value:.1f} % of forms of the gold"
        )
    found += [
        f"{audit.domain}: rejects the gold {form.form} ({form.mistakes} of {form.count})"
        for form in audit.forms
        if form.form in limits.always and form.mistakes
    ]
    found += [
        f"{audit.domain}: pays for repeating {form.form} ({form.mistakes} of {form.count}, floor "
        f"{audit.floor:.2f})"
        for form in audit.paid_copies
    ]
    if audit.num_failed:
        found.append(f"{audit.domain}: {audit.num_failed} attempts were errors or unscored")
    return found


def moved_rates(
    audits: Sequence[GraderAudit], baseline: Mapping[str, Any], *, level: float = 0.01
) -> list[str]:
    """Return the forms whose mistakes are more than a baseline's audit can explain by chance.

    A form that never failed before and fails now is always named.
    """
    if baseline.get("format_version") != FORMAT_VERSION:
        raise DomainError(
            f"the baseline is of format {baseline.get('format_version')}; this version reads "
            f"{FORMAT_VERSION}"
        )
    before = {
        (a["domain"], f["group"], f["form"]): f for a in baseline["audits"] for f in a["forms"]
    }
    found = []
    for audit in audits:
        for form in audit.forms:
            old = before.get((audit.domain, form.group, form.form))
            if old is None or not form.mistakes:
                continue
            is_new = old["mistakes"] == 0
            if is_new or _p_more(form, old) < level:
                found.append(
                    f"{audit.domain}: {form.form}: {form.mistakes} of {form.count} mistakes, "
                    f"{old['mistakes']} of {old['count']} before"
                )
    return found


def _p_more(now: FormCount, old: Mapping[str, int]) -> float:
    """One-sided p-value of Fisher's exact test that mistakes became more frequent."""
    from scipy.stats import fisher_exact

    table = [
        [now.mistakes, now.count - now.mistakes],
        [old["mistakes"], old["count"] - old["mistakes"]],
    ]
    return float(fisher_exact(table, alternative="greater")[1])


def baseline_json(audits: Sequence[GraderAudit]) -> dict[str, JSON]:
    """Return what ``moved_rates`` compares with."""
    return {"format_version": FORMAT_VERSION, "audits": [a.to_json() for a in audits]}
