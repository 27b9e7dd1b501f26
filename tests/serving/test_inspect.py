"""The real Inspect against the real server: its own tasks, and educe's suites and domains."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from served_client import scripted_server

from educe.core.protocols import GenerateRequest
from educe.core.types import Fault, Score, Split
from educe.domains.registry import load_domain
from educe.models.chat import ChatFormat
from educe.models.tiny import byte_tokenizer

inspect_ai = pytest.importorskip("inspect_ai")
# What other packages deprecate is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ("arithmetic/percent/tiny", "tools/notes/tiny")


@pytest.fixture(autouse=True)
def swept():
    """Its client leaves connections of a loop that is gone: they end here, where warnings pass."""
    yield
    gc.collect()


def run(task, url: str, folder: Path, name: str = "scripted"):
    from inspect_ai.model import get_model

    model = get_model(f"openai-api/educe/{name}", base_url=url, api_key="none", memoize=False)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none",
                             log_samples=True)  # fmt: skip
    assert log.status == "success", log.error
    return log


def golds(count: int) -> Callable[[GenerateRequest], Sequence[int]]:
    """A script that knows every task's perfect attempt, turn by turn."""
    tokenizer = byte_tokenizer()
    chat = ChatFormat(tokenizer)
    known = {}
    for name in NAMES:
        domain = load_domain(name)
        for index in range(count):
            task = domain.task(Split.EVAL, index)
            said = [m.content for m in domain.demonstration(task) if m.role == "assistant"]
            known[chat.prompt_text(task.messages, generate=False)] = said

    def script(request: GenerateRequest) -> Sequence[int]:
        text = tokenizer.decode(list(request.prompt_token_ids))
        head = max((h for h in known if text.startswith(h)), key=len)
        turn = text[len(head) :].count("<|im_start|>assistant") - 1
        return [*tokenizer.encode(known[head][turn]), 2]

    return script


def test_a_task_of_inspect_s_own(served, tmp_path):
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig
    from inspect_ai.scorer import includes

    task = inspect_ai.Task(
        dataset=[Sample(input=f"say {i}", target="nothing of the kind") for i in range(4)],
        scorer=includes(),
        config=GenerateConfig(max_tokens=8, temperature=0, seed=1, logprobs=True, top_logprobs=2,
                              stop_seqs=["never said"]),
    )  # fmt: skip
    log = run(task, served.client.url, tmp_path, "tiny")
    for sample in log.samples:
        assert 0 < sample.output.usage.output_tokens <= 8
        tokens = sample.output.choices[0].logprobs.content
        assert len(tokens) == sample.output.usage.output_tokens


def test_golds_score_one_hundred_over_several_turns(tmp_path):
    from educe.evaluation.inspect_tasks import domains, eval_result

    with scripted_server(golds(3), context_length=8192) as server:
        log = run(domains(",".join(NAMES), tasks=3, max_tokens=400), server.client.url, tmp_path)
    result = eval_result(log)
    assert {r.domain for r in result.rows} == {f"domains/{n}" for n in NAMES}
    assert [str(r.outcome) for r in result.rows] == ["right"] * 6
    assert all(r.num_turns > 1 for r in result.rows if "tools" in r.domain)
    found = log.results.scores[0].metrics
    assert {found[n].value for n in found if n.startswith("domains/")} == {1.0}
    assert found["all"].value == 1.0


def test_a_suite_reads_back_and_equals_educe_s_own(served, tmp_path):
    """The same model behind the server and in this process: the same texts, scores and numbers."""
    from educe.engines.embedded import EmbeddedEngine
    from educe.evaluation.inspect_tasks import suite_result, suite_task
    from educe.evaluation.subject import EngineSubject
    from educe.evaluation.suite import SuitePlan, run_suite

    plan = SuitePlan(
        dimensions=("completion",), tier="small",
        options={"completion": {"domains": ["arithmetic/percent/tiny"], "tasks": 4}},
    )  # fmt: skip
    log = run(suite_task(plan), served.client.url, tmp_path, "tiny")
    theirs = suite_result(log, "tiny")
    engine = EmbeddedEngine(
        served.model, stop_token_ids=served.chat.stop_token_ids, decode=served.chat.decode,
        max_rows=6, exact=True,
    )  # fmt: skip
    ours = run_suite(EngineSubject("tiny", None, engine, served.chat, 0, 1024), plan)
    kept = [
        [(r.key, r.content_hash, r.value, str(r.outcome), r.num_tokens, r.completion) for r in rows]
        for rows in (theirs.rows.rows, ours.rows.rows)
    ]
    assert kept[0] == kept[1]
    assert theirs.dimensions[0].measures == ours.dimensions[0].measures


def test_what_has_no_score_is_no_zero(tmp_path, monkeypatch):
    from educe.evaluation.inspect_tasks import ScoringDesk, domains, eval_result

    async def judge(*_) -> Score:
        return Score.unscored(Fault.GRADER, "the judge is away")

    monkeypatch.setattr(ScoringDesk, "score", judge)
    with scripted_server(golds(2), context_length=8192) as server:
        log = run(domains(NAMES[0], tasks=2), server.client.url, tmp_path)
    assert [str(r.outcome) for r in eval_result(log).rows] == ["unscored"] * 2
    values = [s.value for sample in log.samples for s in sample.scores.values()]
    assert all(math.isnan(v) for v in values)
    assert log.results.scores[0].unscored_samples == 2


def test_wrong_options_are_said():
    from educe.core.errors import EduceError
    from educe.evaluation.inspect_tasks import domains, suite, suite_task
    from educe.evaluation.suite import SuitePlan

    with pytest.raises(EduceError, match="tier must be one of"):
        suite(tier="huge")
    with pytest.raises(EduceError, match="tool_replies"):
        domains(NAMES[0], tool_replies="none")
    with pytest.raises(EduceError, match="asked directly"):
        suite_task(SuitePlan(strategy="cot"))
