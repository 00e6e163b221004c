"""OpenAI's own client against the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ktbench.serve.tokens import TextTokens
from tests.serve.fake import FakeEngine, logprob, serving
from tests.waiting import until

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")


@pytest.fixture(scope="module")
def client(tokens: TextTokens) -> Iterator[openai.OpenAI]:
    with (
        serving(tokens, FakeEngine(), api_key=b"secret") as server,
        openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0, timeout=30) as found,
    ):
        yield found


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model="nano", messages=asked("hi"), max_completion_tokens=4, seed=1)
    assert got.choices[0].message.content == "hihi"
    assert got.choices[0].finish_reason == "length"
    assert got.usage.prompt_tokens_details.cached_tokens > 0


def test_chat_in_a_stream(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    parts = list(
        client.chat.completions.create(
            model="nano", messages=asked("hi"), max_tokens=4, stream=True, stream_options=options
        )
    )
    assert "".join(one.choices[0].delta.content for one in parts if one.choices) == "hihi"
    assert parts[-1].usage.completion_tokens == 4


def test_the_streaming_helper_puts_an_answer_together(client: openai.OpenAI) -> None:
    with (
        client.chat.completions.stream(model="nano", messages=asked("hi"), max_tokens=4) as stream,
        pytest.raises(openai.LengthFinishReasonError),
    ):
        stream.get_final_completion()
    with client.chat.completions.stream(model="nano", messages=asked("hi"), stop=["ih"], max_tokens=9) as stream:
        assert stream.get_final_completion().choices[0].message.content == "h"


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model="nano", messages=asked("hi"), max_tokens=2, logprobs=True, top_logprobs=2
    )
    first = got.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, first.logprob) == ("h", [104], logprob(104))
    assert [one.token for one in first.top_logprobs] == ["h", "i"]


def test_completions(client: openai.OpenAI) -> None:
    got = client.completions.create(model="nano", prompt=["ab", "cd"], max_tokens=3, n=2, echo=True, logprobs=1)
    assert [one.text for one in got.choices] == ["ababa", "ababa", "cdcdc", "cdcdc"]
    assert got.choices[0].logprobs.token_logprobs[:2] == [None, logprob(97)]
    parts = client.completions.create(model="nano", prompt=[97, 98], max_tokens=3, stream=True)
    assert "".join(one.choices[0].text for one in parts) == "aba"


def test_models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").owned_by == "ktbench"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="nano", messages=asked("hi"), extra_body={"suffix": "x"})
    assert (wrong.value.param, wrong.value.code) == ("suffix", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").models.list()


def test_a_full_queue_is_an_error_of_its_own(tokens: TextTokens) -> None:
    with (
        serving(tokens, FakeEngine(most_running=1, most_waiting=1, delay_s=0.002)) as busy,
        openai.OpenAI(base_url=busy.url, api_key="none", max_retries=0) as client,
    ):
        streams = [busy.open_stream()]
        until(lambda: busy.engine.state.running == 1)
        streams.append(busy.open_stream())
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="nano", prompt="hi")
        for one in streams:
            one.close()


def test_an_error_in_the_middle_of_a_stream_is_raised(tokens: TextTokens) -> None:
    with (
        serving(tokens, FakeEngine(fails_at=5)) as server,
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        stream = client.completions.create(model="nano", prompt="hi", max_tokens=50, stream=True)
        with pytest.raises(openai.APIError, match="device is gone"):
            list(stream)


def test_a_stream_that_is_closed_is_taken_back(tokens: TextTokens) -> None:
    engine = FakeEngine(delay_s=0.002)
    with serving(tokens, engine) as server, openai.OpenAI(base_url=server.url, api_key="none") as client:
        stream = client.completions.create(model="nano", prompt="hi", max_tokens=4000, stream=True)
        next(iter(stream))
        stream.close()
        until(lambda: engine.state.running == 0)
