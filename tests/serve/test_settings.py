"""Settings of a command line, keys of the API, and addresses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ktbench.cli.keys import take_arguments
from ktbench.serve.settings import ChatSettings, ServerSettings, bind, read_api_key
from ktbench.spec.errors import RequestError


def test_own_words_are_taken_and_others_left() -> None:
    given = ["model=nano", "serve.port=0", "serve.stall_s=2.5"]
    words, settings = take_arguments("serve", given, ServerSettings, "serve.")
    assert words == ["model=nano"]
    assert settings == ServerSettings(port=0, stall_s=2.5)
    _, chat = take_arguments("chat", ["chat.system=Be brief = be nice", "chat.temperature=0"], ChatSettings, "chat.")
    assert (chat.system, chat.temperature) == ("Be brief = be nice", 0)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("serve.prot=5", "did you mean serve.port"),
        ("serve.port=five", "serve.port"),
        ("serve.port=65536", "0 to 65535"),
        ("serve.port=", "serve.port"),
        ("serve.host=", "serve.host"),
        ("serve.max_body_bytes=0", "serve.max_body_bytes"),
        ("serve.stall_s=nan", "serve.stall_s"),
        ("serve.drain_s=-1", "serve.drain_s"),
    ],
)
def test_wrong_words_are_one_line(word: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        take_arguments("serve", [word], ServerSettings, "serve.")
    assert "\n" not in str(error.value)


def test_a_key_is_given_once() -> None:
    with pytest.raises(RequestError, match="twice"):
        take_arguments("serve", ["serve.port=1", "serve.port=2"], ServerSettings, "serve.")


@pytest.mark.parametrize(
    "word",
    ["chat.temperature=-1", "chat.top_p=0", "chat.max_tokens=0", "chat.seed=-1", "chat.repetition_penalty=0"],
)
def test_wrong_words_of_a_chat(word: str) -> None:
    with pytest.raises(RequestError, match=word.partition("=")[0]):
        take_arguments("chat", [word], ChatSettings, "chat.")


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    monkeypatch.setenv("A_KEY", "other")
    assert read_api_key(None) is None
    assert read_api_key(f"file:{file}") == b"secret"
    assert read_api_key("env:A_KEY") == b"other"


@pytest.mark.parametrize("source", ["hunter2", "env:", "env:NO_SUCH_KEY", "file:/nowhere/key", "file:{empty}", "{two}"])
def test_a_key_that_is_none_is_refused_and_not_shown(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "two").write_text("hunter2 x\n")
    chosen = source.format(empty=tmp_path / "empty", two=f"file:{tmp_path / 'two'}")
    with pytest.raises(RequestError) as error:
        read_api_key(chosen)
    assert "hunter2" not in str(error.value)


def test_an_address_that_is_taken_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(RequestError, match="in use"):
            bind(ServerSettings(port=other.getsockname()[1]))


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="serve.host=192.0.2.1"):
        bind(ServerSettings(host="192.0.2.1", port=0))


@pytest.mark.parametrize(
    ("host", "is_local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_which_addresses_are_local(host: str, is_local: bool) -> None:
    assert ServerSettings(host=host).is_local == is_local
