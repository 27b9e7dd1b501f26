"""Clients that leave, queues that fill, engines that fail, strangers at the door."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time

import pytest
from served_client import Client, Scripted, says, scripted_server

from educe.core.errors import EduceError
from educe.serving.gatekeeper import check_token, is_loopback
from educe.serving.server import listen

HELLO = [{"role": "user", "content": "hello"}]
LONG = says("never ending " * 60)
TOKEN = "a-token-of-the-tests-0123"


def wait_until(is_so, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.01)


def ask(server: Scripted, **fields):
    return server.client.post("/chat/completions", messages=HELLO, **fields)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_frees_its_rows(is_streamed):
    with scripted_server(LONG, max_rows=2) as server:
        server.engine.go.clear()
        connection = server.client.connect()
        body = json.dumps({"messages": HELLO, "n": 3, "stream": is_streamed})
        connection.request("POST", "/v1/chat/completions", body)
        wait_until(lambda: server.thread.num_open == 3)
        connection.sock.close()
        connection.close()
        # The server notices at once; the engine at its next step, which is held back here.
        wait_until(lambda: all(t.is_cancelled for t in server.thread._tickets.values()))
        server.engine.go.set()
        wait_until(lambda: server.thread.num_open == 0)
        assert server.engine.num_unfinished == 0
        assert server.metrics.cancelled.value() == 3
        assert ask(server, max_tokens=3).status == 200


def test_a_full_queue_says_try_again(monkeypatch):
    with scripted_server(LONG, max_rows=1, max_waiting=2) as server:
        server.engine.go.clear()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(ask, server, max_tokens=2) for _ in range(3)]
            wait_until(lambda: server.thread.num_open == 3)
            refused = ask(server)
            assert refused.status == 429
            assert refused.error["code"] == "queue_full"
            assert refused.headers["retry-after"] == "1"
            stream = server.client.open_stream("/chat/completions", messages=HELLO)
            assert stream[1].status == 429, "a stream is refused before it begins"
            stream[0].close()
            server.engine.go.set()
            assert [job.result().status for job in jobs] == [200] * 3
        assert ask(server, max_tokens=2).status == 200


def test_more_than_ever_fits_is_no_matter_of_waiting():
    with scripted_server(LONG, max_rows=1, max_waiting=2) as server:
        answer = ask(server, n=4)
        assert (answer.status, answer.error["param"]) == (400, "n")
        answer = server.client.post("/completions", prompt=["a"] * 4)
        assert (answer.status, answer.error["param"]) == (400, "prompt")


def test_an_engine_that_fails_leaves_nobody_waiting(caplog):
    with scripted_server(LONG, max_rows=1) as server:
        server.engine.go.clear()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(ask, server)
            streaming = pool.submit(server.client.stream, "/chat/completions", messages=HELLO)
            wait_until(lambda: server.thread.num_open == 2)
            server.engine.fail = True
            server.engine.go.set()
            assert waiting.result().status == 500
            assert "out of luck" in waiting.result().error["message"]
            last = streaming.result()[-1]
            assert last["error"]["type"] == "server_error", "a broken stream has no [DONE]"
        assert server.client.get("/health").status == 503
        later = ask(server)
        assert later.status == 503
        assert "restart" in later.error["message"]
    assert "out of luck" in caplog.text


def test_a_server_that_stops_answers_who_waits():
    answers = []
    with scripted_server(LONG, max_rows=1) as server:
        server.engine.go.clear()
        thread = threading.Thread(target=lambda: answers.append(ask(server)))
        thread.start()
        wait_until(lambda: server.thread.num_open == 1)
        closing = threading.Thread(target=server.thread.close)
        closing.start()
        wait_until(lambda: server.thread.trouble != "")
        server.engine.go.set()
        thread.join(30)
        closing.join(30)
    assert [a.status for a in answers] == [503]


def test_calls_become_tool_calls_whole_or_streamed():
    text = 'I look.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    with scripted_server(says(text)) as server:
        (choice,) = ask(server, tools=tools).body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "I look."
        (call,) = choice["message"]["tool_calls"]
        assert call["type"] == "function"
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        chunks = server.client.stream("/chat/completions", messages=HELLO, tools=tools)[:-1]
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert "".join(d.get("content") or "" for d in deltas) == "I look."
        (streamed,) = [c for d in deltas for c in d.get("tool_calls", ())]
        assert (streamed["index"], streamed["function"]) == (0, call["function"])
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        # Without tools, or when they are off, text is text.
        for fields in ({}, {"tools": tools, "tool_choice": "none"}):
            (choice,) = ask(server, **fields).body["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


def test_a_call_that_is_no_json_stays_text():
    text = "<tool_call>{add 1}</tool_call>"
    tools = [{"type": "function", "function": {"name": "add"}}]
    with scripted_server(says(text)) as server:
        (choice,) = ask(server, tools=tools).body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


def test_characters_of_several_tokens_stream_whole():
    text = "naïve café — 日本語 🙂 done"
    with scripted_server(says(text)) as server:
        chunks = server.client.stream("/completions", prompt="x", max_tokens=200)[:-1]
        pieces = [c["choices"][0]["text"] for c in chunks]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in p for p in pieces)


# Who may ask


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("localhost", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.2", False), ("example.org", False),
     ("localhost.example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host, is_local):
    assert is_loopback(host) == is_local


def test_the_network_needs_a_token():
    with pytest.raises(EduceError, match="EDUCE_SERVE_TOKEN"):
        listen("0.0.0.0", 0, "")
    with pytest.raises(EduceError, match="16 characters"):
        check_token("127.0.0.1", "short")
    check_token("0.0.0.0", TOKEN)


def test_a_taken_port_is_said():
    with listen("127.0.0.1", 0, "") as bound:
        port = bound.getsockname()[1]
        with pytest.raises(EduceError, match=f"127.0.0.1:{port}.*another --port"):
            listen("127.0.0.1", port, "")


def test_the_token_is_asked_for():
    with scripted_server(says("hi"), token=TOKEN) as server:
        url = server.client.url
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN},
                        {"Authorization": f"Basic {TOKEN}"}):  # fmt: skip
            client = Client(url, headers)
            assert client.post("/completions", prompt="x").status == 401
            assert client.get("/metrics").status == 401
        assert Client(url).get("/health").body == {"status": "ok"}
        told = Client(url, {"Authorization": f"Bearer {TOKEN}"})
        assert told.post("/completions", prompt="x").status == 200
        assert 'status="401"' in told.get("/metrics").body


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "https://evil.example"},
     {"Origin": "null"}],
)  # fmt: skip
def test_pages_of_other_sites_do_not_get_in(headers):
    """A browser reaches loopback by a name that resolves to it, and by cross-site requests."""
    with scripted_server(says("hi")) as server:
        answer = Client(server.client.url, headers).post("/completions", prompt="x")
        assert (answer.status, answer.error["code"]) == (403, "not_local")
        local = Client(server.client.url, {"Origin": "http://localhost:3000"})
        assert local.post("/completions", prompt="x").status == 200
