"""A chat, line by line, on an engine of scripted answers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from ktbench.engine.serving.requests import ServeRequest, TokenEvent
from ktbench.serve.answer import EngineFailed
from ktbench.serve.settings import ChatSettings
from ktbench.serve.terminal import Terminal
from ktbench.serve.tokens import TextTokens
from tests.serve.fake import FakeEngine


def talk(
    tokens: TextTokens,
    lines: list[str],
    engine: FakeEngine | None = None,
    write: Callable[[str], None] | None = None,
    **settings: object,
) -> str:
    """What the terminal shows, without the line of help."""
    shown: list[str] = []
    left = iter(lines)
    chosen = ChatSettings(**{"max_tokens": 8, **settings})  # type: ignore[arg-type]
    made = Terminal(engine or FakeEngine(script=said), tokens, chosen, lambda: next(left, None), write or shown.append)
    made.run()
    return "".join(shown[1:])


def said(request: ServeRequest) -> list[int]:
    """The number of messages of the conversation so far."""
    return [*str(request.prompt.count(259)).encode(), 10]


def test_answers_come_until_the_input_ends(tokens: TextTokens) -> None:
    assert talk(tokens, ["a", "", "b"]) == "1\n2\n"


def test_exit_ends_at_once(tokens: TextTokens) -> None:
    assert talk(tokens, ["a", "/exit", "b"]) == "1\n"


def test_reset_forgets_all_but_the_system_message(tokens: TextTokens) -> None:
    engine = FakeEngine(script=said)
    assert talk(tokens, ["a", "b", "/reset", "c"], engine, system="be brief") == "1\n2\n1\n"
    assert b"be brief" in tokens.text(engine.seen[-1].prompt).encode()


def test_unknown_commands_are_no_messages(tokens: TextTokens) -> None:
    engine = FakeEngine(script=said)
    assert "/rest" in talk(tokens, ["/rest"], engine)
    assert not engine.seen


def test_answers_are_part_of_the_conversation(tokens: TextTokens) -> None:
    engine = FakeEngine(script=said)
    talk(tokens, ["a", "b"], engine)
    assert b"".join(map(tokens.shown, engine.seen[-1].prompt)) == b"a1b"
    assert engine.seen[0].sampling.seed != engine.seen[1].sampling.seed


def test_an_interrupt_stops_the_answer_and_not_the_chat(tokens: TextTokens) -> None:
    engine, shown = FakeEngine(), list[str]()

    def write(text: str) -> None:
        shown.append(text)
        if text == "x" and shown.count("x") == 3:
            signal.raise_signal(signal.SIGINT)

    talk(tokens, ["x", "/exit"], engine, write, max_tokens=4000)
    assert shown.count("x") == 3
    assert engine.state.running == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_conversation_without_room_can_be_reset(tokens: TextTokens) -> None:
    engine = FakeEngine(script=said, max_positions=20)
    shown = talk(tokens, ["a" * 30, "a"], engine)
    assert "/reset" in shown
    assert shown.endswith("\n1\n")


def test_an_error_of_the_engine_ends_the_chat(tokens: TextTokens) -> None:
    class Failing(FakeEngine):
        def step(self) -> list[TokenEvent]:
            (key,) = self.waiting
            return [TokenEvent(key=key, token=None, finish="error", why="out of pages")]

    with pytest.raises(EngineFailed, match="out of pages"):
        talk(tokens, ["a"], Failing())
