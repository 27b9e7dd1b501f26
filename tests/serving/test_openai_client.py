"""The real ``openai`` client against the real server and the seeded tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_client import says, scripted_server

openai = pytest.importorskip("openai")

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(served) -> Iterator:
    with openai.OpenAI(base_url=served.client.url, api_key="none", max_retries=0) as made:
        yield made


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "educe"


def test_chat(client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "seed": 4}
    whole = client.chat.completions.create(**asked, n=2, logprobs=True, top_logprobs=2)
    assert [c.index for c in whole.choices] == [0, 1]
    assert len(whole.choices[0].logprobs.content) <= 12
    assert whole.usage.completion_tokens <= 24
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(c.delta.content or "" for c in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_likelihoods(client):
    found = client.completions.create(
        model="tiny", prompt=["abc", "abcd"], echo=True, max_tokens=0, logprobs=1
    )
    first, second = (c.logprobs.token_logprobs for c in found.choices)
    assert first[0] is None
    assert second[1:3] == pytest.approx(first[1:], abs=1e-5)


def test_errors_are_the_client_s_own(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=HELLO)


def test_tools_over_two_turns():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    seen: list[str] = []

    def script(request):
        from educe.models.tiny import byte_tokenizer

        seen.append(byte_tokenizer().decode(list(request.prompt_token_ids)))
        return says("It is 3." if "<|im_start|>tool" in seen[-1] else call)(request)

    with (
        scripted_server(script) as server,
        openai.OpenAI(base_url=server.client.url, api_key="none") as client,
    ):
        first = client.chat.completions.create(model="scripted", messages=HELLO, tools=tools)
        (made,) = first.choices[0].message.tool_calls
        assert (made.function.name, made.function.arguments) == ("add", '{"a": 1, "b": 2}')
        talk = [*HELLO, first.choices[0].message,
                {"role": "tool", "tool_call_id": made.id, "content": "3"}]  # fmt: skip
        second = client.chat.completions.create(model="scripted", messages=talk, tools=tools)
    assert second.choices[0].message.content == "It is 3."
    assert call in seen[-1], "the second turn reads the call as the model wrote it"


def test_a_full_queue_and_a_wrong_key():
    token = "a-token-of-the-tests-0123"
    with (
        scripted_server(says("hi"), token=token) as server,
        openai.OpenAI(base_url=server.client.url, api_key="wrong", max_retries=0) as wrong,
        openai.OpenAI(base_url=server.client.url, api_key=token) as right,
    ):
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        found = right.chat.completions.create(model="scripted", messages=HELLO)
        assert found.choices[0].message.content == "hi"
