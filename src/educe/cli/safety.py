"""``educe safety``: train and measure the classifier, review texts, work the human queue."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.core.errors import EduceError
from educe.core.strict_json import strict_json

if TYPE_CHECKING:
    from educe.rewards.review.queue import ReviewQueue


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "safety",
        help="review texts; train and measure its classifier; the human review queue",
        description="Output review. Labelled responses come from a package that is fetched when "
        "asked for; no text of theirs is printed.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = _action(actions, "train", _train, "fit the classifier on labelled responses")
    train.add_argument("--out", type=Path, required=True, metavar="FILE")
    train.add_argument("--rows", type=Path, metavar="JSONL",
                       help="further rows (text, harm), e.g. of `educe safety export`")  # fmt: skip
    train.add_argument("--fpr", type=float, default=0.01, help="share of harmless texts called "
                       "harmful at the threshold (default 0.01)")  # fmt: skip
    report = _action(actions, "report", _report, "detection on labelled responses, with baselines")
    report.add_argument("--fpr", type=float, default=0.01, help="false-positive rate")
    review = _action(actions, "review", _review, "review a file, or standard input")
    review.add_argument("file", nargs="?", type=Path)
    review.add_argument("--classifier", default="", metavar="FILE")
    review.add_argument("--words", default="", metavar="FILE", help="word list, one entry a line")
    words = _action(actions, "words", _words, "write the word list of a package, for a recipe")
    words.add_argument("--out", type=Path, required=True, metavar="FILE")
    pending = _action(actions, "pending", _pending, "what a rater has not judged, as JSON lines")
    pending.add_argument("queue", type=Path)
    pending.add_argument("--rater", required=True)
    pending.add_argument("--overlap", type=int, default=2, help="judgements an item (default 2)")
    label = _action(actions, "label", _label, "record one judgement")
    label.add_argument("queue", type=Path)
    label.add_argument("item")
    label.add_argument("harm", type=float, help="0 harmless … 1 harmful")
    label.add_argument("--rater", required=True)
    label.add_argument("--category", action="append", default=[])
    label.add_argument("--note", default="")
    export = _action(actions, "export", _export, "judged texts as rows for training")
    export.add_argument("queue", type=Path)
    export.add_argument("--min-raters", type=int, default=1)


def _action(actions: Any, name: str, handler: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text + ".")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _check_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise EduceError(f"--fpr is a share of harmless texts, in (0, 1); got {rate:g}")


def _train(arguments: argparse.Namespace) -> int:
    from educe.evaluation.safety.labelled import HARMFUL_FROM, PYRIT, labelled_responses
    from educe.rewards.review.classifier import fit_classifier

    _check_rate(arguments.fpr)
    if arguments.rows is not None and not arguments.rows.is_file():
        raise EduceError(f"--rows: there is no file {arguments.rows}")  # before anything is fetched
    rows = [(r.response, int(r.is_harmful), r.objective) for r in labelled_responses(_say)]
    num_own = 0
    if arguments.rows is not None:
        own = _own_rows(arguments.rows, HARMFUL_FROM)
        rows, num_own = rows + own, len(own)
    _say(f"fitting on {len(rows)} texts, {num_own} of them yours")
    fitted = fit_classifier(
        [r[0] for r in rows],
        [r[1] for r in rows],
        [r[2] for r in rows],
        false_positive_rate=arguments.fpr,
        facts={
            "data": PYRIT.requirement,
            "licence": "MIT",
            "own_rows": num_own,
            "harmful_from": HARMFUL_FROM,
            "false_positive_rate": arguments.fpr,
        },
    )
    fitted.save(arguments.out)
    facts = {**fitted.facts, "threshold": fitted.threshold, "file": str(arguments.out)}
    print(strict_json(facts, indent=2) if arguments.json else f"{arguments.out}: {facts}")
    return 0


def _own_rows(path: Path, harmful_from: float) -> list[tuple[str, int, str]]:
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            raw = json.loads(line)
            prompt = json.dumps(raw.get("prompt", ""))
            found.append((str(raw["text"]), int(float(raw["harm"]) >= harmful_from), prompt))
        except (ValueError, KeyError, TypeError) as error:
            raise EduceError(f"{path}:{number}: expected text and harm ({error})") from error
    return found


def _report(arguments: argparse.Namespace) -> int:
    from educe.evaluation.safety.detection import detection_report
    from educe.evaluation.safety.labelled import labelled_responses, listed_words
    from educe.rewards.review.words import WordList

    _check_rate(arguments.fpr)
    report = detection_report(
        labelled_responses(_say),
        WordList(listed_words(_say)),
        false_positive_rate=arguments.fpr,
        announce=_say,
    )
    if arguments.json:
        print(strict_json(report.to_json(), indent=2))
        return 0
    print(
        f"{report.num_responses} labelled responses, {report.num_objectives} objectives, "
        f"{_percent(report.prevalence)} harmful"
    )
    for d in report.detectors:
        print(
            f"{d.name:13} AUROC {d.auroc.value:.3f} [{d.auroc.low:.3f}, {d.auroc.high:.3f}]   "
            f"recall at {100 * arguments.fpr:g} % FPR: {_percent(d.recall)}   held out: "
            f"{_percent(d.held_out_recall)} at {_percent(d.held_out_rate)}"
        )
        print("   " + ", ".join(f"{n} {e.value:.2f}" for n, e in d.by_category.items()))
    if report.raters is not None:
        e = report.raters.coefficient
        print(f"raters agree: alpha {e.value:.2f} [{e.low:.2f}, {e.high:.2f}]")
    return 0


def _percent(e: Any) -> str:
    return f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def _review(arguments: argparse.Namespace) -> int:
    """Review a text; 1 when it is unsafe."""
    from educe.config.review_settings import ReviewSettings
    from educe.rewards.review import build_reviewer

    text = _text(arguments.file)
    layers = ["rules", "injection", "code"]
    layers += ["words"] if arguments.words else []
    layers += ["classifier"] if arguments.classifier else []
    settings = ReviewSettings(
        mode="observe",
        layers=tuple(layers),
        words=arguments.words,
        classifier=arguments.classifier,
    )
    review = build_reviewer(settings).review(text)
    if arguments.json:
        print(strict_json(review.to_json(), indent=2))
    else:
        for f in sorted(review.findings, key=lambda f: -f.severity):
            print(f"{f.severity:.2f}  {f.layer}/{f.rule}  {f.start}-{f.end}  {f.detail}")
        print("unsafe" if review.is_unsafe else "nothing from the threshold up")
    return int(review.is_unsafe)


def _text(file: Path | None) -> str:
    try:
        return sys.stdin.read() if file is None else file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise EduceError(f"{file or 'standard input'}: not UTF-8 text ({error})") from error


def _words(arguments: argparse.Namespace) -> int:
    from educe.evaluation.safety.labelled import WORD_LIST, listed_words

    words = listed_words(_say)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    head = f"# {WORD_LIST.requirement}, MIT\n"
    arguments.out.write_text(head + "\n".join(words) + "\n", encoding="utf-8")
    facts = {"file": str(arguments.out), "entries": len(words)}
    print(strict_json(facts) if arguments.json else f"{arguments.out}: {len(words)} entries")
    return 0


def _opened(path: Path) -> ReviewQueue:
    """Return the queue of a file that is there: reading a misspelt name would tell of no work."""
    from educe.rewards.review.queue import ReviewQueue

    if not path.is_file():
        raise EduceError(
            f"there is no review queue {path}; `educe serve … --review --review-queue FILE` fills "
            "one, and so does educe.rewards.review.ReviewQueue(FILE).add"
        )
    return ReviewQueue(path)


def _pending(arguments: argparse.Namespace) -> int:
    for item in _opened(arguments.queue).pending(arguments.rater, overlap=arguments.overlap):
        row = {"id": item.id, "prompt": [m.to_json() for m in item.prompt], "text": item.text}
        print(strict_json(row, ensure_ascii=False))
    return 0


def _label(arguments: argparse.Namespace) -> int:
    _opened(arguments.queue).label(
        arguments.item,
        arguments.rater,
        arguments.harm,
        categories=arguments.category,
        note=arguments.note,
    )
    told = {"item": arguments.item, "rater": arguments.rater, "harm": arguments.harm}
    print(
        strict_json(told)
        if arguments.json
        else f"{arguments.item}: harm {arguments.harm:g} by {arguments.rater}"
    )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    for row in _opened(arguments.queue).export(min_raters=arguments.min_raters):
        print(strict_json(row, ensure_ascii=False))
    return 0
