"""The endpoints, field by field, on an engine of scripted answers."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from ktbench.serve.tokens import TextTokens
from tests.serve.fake import POSITIONS, FakeEngine, Server, events, logprob, serving


def text_of(found: list[Any]) -> str:
    return "".join(choice.get("text", "") for one in found for choice in one["choices"])


def test_a_completion(server: Server) -> None:
    got = server.complete("hi", max_tokens=5)
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-request-id"] == got.json["id"]
    assert got.json["object"] == "text_completion"
    assert got.json["choices"] == [{"index": 0, "text": "hihih", "logprobs": None, "finish_reason": "length"}]
    assert got.json["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip


def test_a_completion_has_16_tokens_where_none_are_named(server: Server) -> None:
    assert server.complete("hi").json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["aba"]),
        (["ab", "cd"], ["aba", "cdc"]),
        ([97, 98], ["aba"]),
        ([[97, 98], [99]], ["aba", "ccc"]),
    ],
)
def test_prompts_are_texts_or_tokens(server: Server, prompt: object, texts: list[str]) -> None:
    choices = server.complete(prompt, max_tokens=3).json["choices"]
    assert [one["text"] for one in choices] == texts
    assert [one["index"] for one in choices] == list(range(len(texts)))


def test_several_answers_to_each_prompt_come_in_order_with_seeds_of_their_own(server: Server) -> None:
    got = server.complete(["ab", "cd"], n=2, seed=7, temperature=1, max_tokens=2).json
    assert [one["text"] for one in got["choices"]] == ["ab", "ab", "cd", "cd"]
    assert got["usage"]["prompt_tokens"] == 6
    assert [one.sampling.seed for one in server.engine.seen[-4:]] == [7, 8, 7, 8]


def test_echo_with_log_probabilities_of_the_prompt(server: Server) -> None:
    found = server.complete("hi", max_tokens=1, echo=True, logprobs=2).json["choices"][0]
    assert found["text"] == "hih"
    assert found["logprobs"] == {
        "tokens": ["<bos>", "h", "i", "h"],
        "token_logprobs": [None, logprob(104), logprob(105), logprob(104)],
        "top_logprobs": [
            None,
            {"h": logprob(104), "i": logprob(105)},
            {"i": logprob(105), "j": logprob(106)},
            {"h": logprob(104), "i": logprob(105)},
        ],
        "text_offset": [0, 0, 1, 2],
    }


def test_echo_alone(server: Server) -> None:
    got = server.complete("hi", max_tokens=0, echo=True).json
    assert got["choices"][0] == {"index": 0, "text": "hi", "logprobs": None, "finish_reason": "length"}
    assert got["usage"]["completion_tokens"] == 0


def test_bytes_that_are_no_character_keep_their_log_probabilities(server: Server) -> None:
    found = server.complete("é", max_tokens=2, logprobs=0).json["choices"][0]
    assert found["text"] == "é"
    assert found["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    chat = server.chat("é", max_tokens=2, logprobs=True).json["choices"][0]
    assert [one["bytes"] for one in chat["logprobs"]["content"]] == [[0xC3], [0xA9]]


def test_a_chat_answer(server: Server) -> None:
    got = server.chat("hi", max_completion_tokens=3, logprobs=True, top_logprobs=1).json
    (choice,) = got["choices"]
    assert got["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": "hih", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["content"][0] == {
        "token": "h", "logprob": logprob(104), "bytes": [104],
        "top_logprobs": [{"token": "h", "logprob": logprob(104), "bytes": [104]}],
    }  # fmt: skip


def test_a_chat_answer_has_the_room_that_is_left(server: Server) -> None:
    got = server.chat("hi", temperature=0).json
    assert got["usage"]["total_tokens"] == POSITIONS


def test_messages_may_have_parts_and_what_clients_send_back(server: Server) -> None:
    messages = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "reasoning_content": None},
        {"role": "assistant", "content": "c", "reasoning_content": "b", "type": "message", "id": "msg_1"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "d", "cache_control": {"type": "ephemeral"}}],
            "name": "n",
        },
    ]
    asked = {"model": "nano", "messages": messages, "max_tokens": 1}
    assert server.ask("POST", "/v1/chat/completions", asked).status == 200
    assert server.engine.seen[-1].prompt[-2:] == (ord("d"), 260)


def test_sampling_is_handed_on(server: Server) -> None:
    server.complete(temperature=0.5, top_p=0.9, repetition_penalty=1.25, seed=-1, max_tokens=1)
    sampling = server.engine.seen[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.5, 0.9, 1.25)
    assert 0 <= sampling.seed < 1 << 63
    server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "hi", "max_tokens": 1})
    assert server.engine.seen[-1].sampling.temperature == 1.0


def test_every_way_to_choose_tokens_is_handed_on(server: Server) -> None:
    asked = {
        "top_k": 20, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5, "min_tokens": 2,
        "logit_bias": {"5": -100, "6": 1.5}, "stop_token_ids": [99], "max_tokens": 3,
    }  # fmt: skip
    assert server.complete(**asked).status == 200
    request = server.engine.seen[-1]
    one = request.sampling
    assert (one.top_k, one.min_p, one.presence_penalty, one.frequency_penalty) == (20, 0.05, 0.5, -0.5)
    assert (one.logit_bias, one.min_tokens) == (((5, -100), (6, 1.5)), 2)
    assert request.stop_ids == {258, 10, 99}
    server.complete(top_k=-1, ignore_eos=True, stop_token_ids=[99], max_tokens=3)
    assert (server.engine.seen[-1].sampling.top_k, server.engine.seen[-1].stop_ids) == (0, {99})


def test_what_is_not_named_is_as_the_checkpoint_has_it(tokens: TextTokens) -> None:
    own = copy(tokens)
    own.defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    with serving(own, FakeEngine()) as server:
        server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "hi", "top_p": 0.5})
        one = server.engine.seen[-1].sampling
    assert (one.temperature, one.top_k, one.top_p, one.min_p) == (0.6, 20, 0.5, 0)


@pytest.mark.parametrize(
    ("reads", "asked", "seen"),
    [
        ("enable_thinking", {"chat_template_kwargs": {"enable_thinking": False}}, "False"),
        ("enable_thinking", {"reasoning_effort": "none"}, "False"),
        ("enable_thinking", {"reasoning_effort": "high"}, "True"),
        ("reasoning_effort", {"reasoning_effort": "high"}, "high"),
        ("reasoning_effort", {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),
        ("messages[0].name", {"reasoning_effort": "low"}, "bob"),
        ("messages[0].reasoning_content", {}, "since"),
    ],
)
def test_templates_get_what_they_read(tokens: TextTokens, reads: str, asked: dict[str, object], seen: str) -> None:
    own = TextTokens(copy(tokens._tokenizer), tokens.stop_ids)
    own._tokenizer.chat_template = f"<{{{{ {reads} }}}}>"
    message = {"role": "assistant", "content": "x", "name": "bob", "reasoning_content": "since"}
    with serving(own, FakeEngine()) as server:
        body = {"model": "nano", "messages": [message], "max_tokens": 1, **asked}
        assert server.ask("POST", "/v1/chat/completions", body).status == 200
        assert bytes(server.engine.seen[-1].prompt) == f"<{seen}>".encode()


def test_a_template_that_fails_is_said(tokens: TextTokens) -> None:
    """Whatever it raises: it is a program of the checkpoint's."""
    own = TextTokens(copy(tokens._tokenizer), tokens.stop_ids)
    own._tokenizer.chat_template = "{{ 1 + messages[0]['content'] }}"
    with serving(own, FakeEngine()) as server:
        got = server.chat()
        assert (got.status, got.error["param"]) == (400, "messages")
        assert server.chat(chat_template_kwargs={"tokenize": True}).status == 400


def test_seeds_differ_where_none_is_named(server: Server) -> None:
    for _ in range(2):
        server.complete(max_tokens=1, temperature=1)
    assert server.engine.seen[-1].sampling.seed != server.engine.seen[-2].sampling.seed


def test_answers_end_by_the_models_tokens_unless_those_are_ignored(server: Server) -> None:
    ended = server.complete([97, 10], max_tokens=8).json
    assert ended["choices"][0] | {"logprobs": 0} == {"index": 0, "text": "a", "logprobs": 0, "finish_reason": "stop"}
    assert ended["usage"]["completion_tokens"] == 2
    assert server.complete([97, 10], max_tokens=4, ignore_eos=True).json["choices"][0]["text"] == "a\na\n"


def test_a_stream_of_text(server: Server) -> None:
    got = server.complete("hi", max_tokens=3, stream=True)
    assert got.headers["content-type"].startswith("text/event-stream")
    found = events(got)
    assert [one["choices"][0]["text"] for one in found] == ["h", "i", "h"]
    assert [one["choices"][0]["finish_reason"] for one in found] == [None, None, "length"]
    assert len({one["id"] for one in found}) == 1
    assert all("usage" not in one for one in found)


def test_a_stream_of_chat(server: Server) -> None:
    found = events(server.chat("hi", max_tokens=2, stream=True))
    assert [one["choices"][0]["delta"] for one in found] == [
        {"role": "assistant", "content": ""}, {"content": "h"}, {"content": "i"},
    ]  # fmt: skip
    assert found[0]["object"] == "chat.completion.chunk"


def test_a_stream_ends_with_usage_where_that_is_asked_for(server: Server) -> None:
    found = events(server.complete("hi", max_tokens=2, stream=True, stream_options={"include_usage": True}))
    assert [one["usage"] for one in found[:-1]] == [None, None]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["total_tokens"] == 5
    always = {"include_usage": True, "continuous_usage_stats": True}
    found = events(server.complete("hi", max_tokens=2, stream=True, stream_options=always))
    assert [one["usage"]["completion_tokens"] for one in found] == [1, 2, 2]


def test_streams_of_several_answers_are_told_apart(server: Server) -> None:
    found = events(server.complete(["ab", "cd"], n=2, max_tokens=4, stream=True))
    texts = dict.fromkeys(range(4), "")
    for one in found:
        (choice,) = one["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "abab", 1: "abab", 2: "cdcd", 3: "cdcd"}


@pytest.mark.parametrize("stop", ["cda", ["zz", "cda"]])
def test_a_stop_string_ends_an_answer_and_the_request(server: Server, stop: object) -> None:
    got = server.complete("abcd", stop=stop, max_tokens=400).json
    assert (got["choices"][0]["text"], got["choices"][0]["finish_reason"]) == ("ab", "stop")
    assert got["usage"]["completion_tokens"] == 5
    found = events(server.complete("abcd", stop=stop, max_tokens=400, stream=True))
    assert text_of(found) == "ab"
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_in_a_stream_are_those_of_the_whole(server: Server) -> None:
    asked: dict[str, Any] = {"max_tokens": 9, "logprobs": 1, "stop": "abb", "echo": True}
    whole = server.complete("abab", **asked).json["choices"][0]
    found = events(server.complete("abab", stream=True, **asked))
    assert text_of(found) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for one in found for value in one["choices"][0]["logprobs"][name]] == values


def test_models(server: Server) -> None:
    got = server.ask("GET", "/v1/models").json
    assert [one["id"] for one in got["data"]] == ["nano"]
    assert server.ask("GET", "/v1/models/nano").json == got["data"][0]
    assert server.ask("GET", "/v1/models/other").error["code"] == "model_not_found"


def test_a_model_has_a_second_name(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(), alias="gpt-4o") as server:
        assert [one["id"] for one in server.ask("GET", "/v1/models").json["data"]] == ["nano", "gpt-4o"]
        assert server.complete(model="gpt-4o", max_tokens=1).status == 200
        assert server.complete(model="gpt-5", max_tokens=1).status == 404


def test_health_and_metrics(server: Server) -> None:
    assert server.ask("GET", "/health").json["status"] == "ok"
    before = metrics(server)
    server.complete("hi", max_tokens=5)
    after = metrics(server)
    assert after["ktbench_completion_tokens_total"] - before["ktbench_completion_tokens_total"] == 5
    assert after["ktbench_prompt_tokens_total"] - before["ktbench_prompt_tokens_total"] == 3
    name = 'ktbench_http_responses_total{path="/v1/completions",status="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert after["ktbench_engine_up"] == 1
    of_model = '{engine="0",model_name="nano"}'
    for theirs, ours in (
        ("generation_tokens_total", "completion_tokens_total"),
        ("prompt_tokens_total", "prompt_tokens_total"),
        ("num_requests_running", "requests_running"),
        ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count"),
        ("e2e_request_latency_seconds_sum", "answer_seconds_sum"),
    ):
        assert after[f"vllm:{theirs}{of_model}"] == after[f"ktbench_{ours}"]
    ended = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="nano"}'
    assert after[ended] - before.get(ended, 0) == 1
    assert after["ktbench_requests_running"] == 0
    assert after['ktbench_engine_count_total{name="steps"}'] > 0


def metrics(server: Server) -> dict[str, float]:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


WRONG: list[tuple[dict[str, object], str | None, str]] = [
    ({"model": "other"}, "model", "model_not_found"),
    ({"prompt": ""}, None, ""),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt", "invalid_value"),
    ({"prompt": [97, "a"]}, "prompt", "invalid_value"),
    ({"prompt": [True]}, "prompt[0]", "invalid_value"),
    ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
    ({"prompt": [272]}, "prompt", "invalid_value"),
    ({"prompt": None}, "prompt", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
    ({"max_tokens": POSITIONS}, "max_tokens", "context_length_exceeded"),
    ({"prompt": "x" * POSITIONS}, "prompt", "context_length_exceeded"),
    ({"prompt": [13, 13]}, None, "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 100}, "n", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"seed": 1 << 64}, "seed", "invalid_value"),
    ({"logprobs": 21}, "logprobs", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"other": 1}}, "other", "unknown_parameter"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"best_of": 3}, "best_of", "unsupported_parameter"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]", "invalid_value"),
    ({"logit_bias": {"272": 1}}, "logit_bias", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"min_p": 1.5}, "min_p", "invalid_value"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"prompt": ["a"] * 9}, "prompt", "invalid_value"),
    ({"prompt": [97] * (POSITIONS + 1)}, "prompt", "context_length_exceeded"),
    ({"skip_special_tokens": False}, "skip_special_tokens", "unsupported_parameter"),
    ({"verbosity": "low"}, "verbosity", "unsupported_parameter"),
    ({"messages": []}, "messages", "unknown_parameter"),
    ({"tempreature": 1}, "tempreature", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG, ids=lambda one: str(one)[:40])
def test_what_is_wrong_is_named(server: Server, fields: dict[str, object], param: str | None, code: str) -> None:
    got = server.complete(**{"prompt": "hi", **fields})
    if not code:  # an empty text is a prompt where the tokenizer begins every text
        assert got.status == 200
        return
    assert got.status == (404 if code == "model_not_found" else 400)
    assert (got.error["param"], got.error["code"]) == (param, code)
    assert got.error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0]"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": "x", "type": "function_call"}], "messages[0].type"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "user", "content": "x", "other": None}], "messages[0].other"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_messages_that_cannot_be_read_are_named(server: Server, messages: object, param: str) -> None:
    got = server.ask("POST", "/v1/chat/completions", {"model": "nano", "messages": messages})
    assert got.status == 400
    assert got.error["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "user": "me", "store": False},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": None, "best_of": 1, "suffix": None},
        {
            "metadata": {"a": "b"},
            "prompt_cache_key": "k",
            "safety_identifier": "x",
            "service_tier": "flex",
            "store": True,
        },
        {"parallel_tool_calls": False, "request_id": "r", "skip_special_tokens": True, "verbosity": "medium"},
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(server: Server, fields: dict[str, object]) -> None:
    assert server.complete(max_tokens=1, **fields).status == 200


@pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"max_tokens": 3, "max_completion_tokens": 4}])
def test_fields_of_a_chat_that_contradict_each_other(server: Server, fields: dict[str, object]) -> None:
    assert server.chat(**fields).status == 400


def test_paths_and_methods_that_are_not_there(server: Server) -> None:
    assert server.ask("GET", "/nowhere").status == 404
    got = server.ask("GET", "/v1/completions")
    assert got.status == 405
    assert got.error["message"]
    assert got.headers["allow"] == "POST"


def test_a_key_is_asked_for_everywhere_but_of_health(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(), api_key=b"secret") as server:
        for headers in (
            {},
            {"Authorization": "Bearer other"},
            {"Authorization": "Basic secret"},
            {"Authorization": "é"},
        ):
            for path in ("/v1/models", "/metrics", "/nowhere"):
                got = server.ask("GET", path, headers=headers)
                assert got.status == 401
                assert got.error["code"] == "invalid_api_key"
                assert got.headers["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer secret"}).status == 200
        other = {"Authorization": "Bearer secret", "Host": "models.example"}
        assert server.ask("GET", "/v1/models", headers=other).status == 200


def test_pages_of_other_sites_cannot_ask(server: Server) -> None:
    assert server.ask("GET", "/v1/models", headers={"Host": "evil.example"}).status == 403
    assert server.ask("GET", "/v1/models", headers={"Host": "127.evil.example"}).status == 403
    for own in ("localhost:1", "127.0.0.2:8000", "[::1]", "127.0.0.1"):
        assert server.ask("GET", "/v1/models", headers={"Host": own}).status == 200
    body = b'{"model": "nano", "prompt": "hi"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert server.ask("POST", "/v1/completions", body, {"Content-Type": kind}).status == 415
    assert (
        server.ask("POST", "/v1/completions", body, {"Content-Type": "application/json; charset=utf-8"}).status == 200
    )
