"""The review at the door: nothing unsafe leaves, in no stream, in no token, in no tool call."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_client import says, scripted_server

from educe.core.errors import UnscoredError
from educe.rewards.review import Reviewer, ReviewQueue, RuleLayer
from educe.serving.review_gate import WITHHELD_TEXT, ReviewGate

HELLO = [{"role": "user", "content": "hello"}]
CARD = "4111 1111 1111 1111"
UNSAFE = f"the card is {CARD}, really"


def gate(*layers, **options) -> ReviewGate:
    return ReviewGate(Reviewer(layers or (RuleLayer(),)), **options)


def test_an_unsafe_answer_is_withheld_with_its_tokens():
    asked = {"messages": HELLO, "logprobs": True, "return_token_ids": True}
    with scripted_server(says(UNSAFE), gate=gate()) as server:
        (choice,) = server.client.post("/chat/completions", **asked).body["choices"]
        assert choice["message"]["content"] == WITHHELD_TEXT
        assert choice["finish_reason"] == "content_filter"
        assert choice["logprobs"]["content"] == choice["token_ids"] == []
        body = server.client.post("/completions", prompt="x", logprobs=1, max_tokens=99).body
        assert body["choices"][0]["text"] == WITHHELD_TEXT
        assert body["choices"][0]["logprobs"]["tokens"] == []
        assert "educe_withheld_total 2" in server.client.get("/metrics").body


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_a_stream_waits_for_the_review(path):
    asked = {"messages": HELLO} if path.startswith("/chat") else {"prompt": "x", "max_tokens": 99}
    for text, leaves, finish in ((UNSAFE, WITHHELD_TEXT, "content_filter"), ("ok", "ok", "stop")):
        with scripted_server(says(text), gate=gate()) as server:
            chunks = server.client.stream(path, **asked)[:-1]
        assert CARD[:9] not in str(chunks)
        choices = [c["choices"][0] for c in chunks]
        said = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
        assert said == leaves
        assert choices[-1]["finish_reason"] == finish


def test_calls_are_reviewed_too():
    call = f'<tool_call>{{"name": "pay", "arguments": {{"card": "{CARD}"}}}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "pay"}}]
    with scripted_server(says(call), gate=gate()) as server:
        (choice,) = server.client.post("/chat/completions", messages=HELLO, tools=tools).body[
            "choices"
        ]
        chunks = server.client.stream("/chat/completions", messages=HELLO, tools=tools)
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == WITHHELD_TEXT
    assert "4111" not in str(chunks)


class Absent:
    name = "judge"

    def inspect(self, text, prompt):
        raise UnscoredError("the judge is away")


class Broken:
    name = "broken"

    def inspect(self, text, prompt):
        raise ZeroDivisionError("a bug")


def test_what_cannot_be_judged_does_not_leave():
    with scripted_server(says("harmless"), gate=gate(RuleLayer(), Absent())) as server:
        (choice,) = server.client.post("/chat/completions", messages=HELLO).body["choices"]
    assert choice["finish_reason"] == "content_filter"


def test_a_review_that_breaks_lets_nothing_out(caplog):
    with scripted_server(says("harmless"), gate=gate(Broken())) as server:
        answer = server.client.post("/chat/completions", messages=HELLO)
        chunks = server.client.stream("/chat/completions", messages=HELLO)
    assert answer.status == 500
    assert "harmless" not in str(answer.body) + str(chunks)
    assert "error" in chunks[-1]


def test_people_get_what_was_drawn_or_not_judged(tmp_path: Path):
    queue = ReviewQueue(tmp_path / "queue.jsonl")
    rule = gate(RuleLayer(), Absent(), queue=queue, audit_rate=1.0)
    with scripted_server(says("harmless"), gate=rule) as server:
        server.client.post("/chat/completions", messages=HELLO)
    found = ReviewQueue(tmp_path / "queue.jsonl").items.values()
    assert {str(item.reason) for item in found} == {"audit", "failed layer"}
    assert all(item.text == "harmless" for item in found)
    assert all(item.prompt[0].content == "hello" for item in found)
