"""Texts of answers as tokens come, against texts cut as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.serving.requests import Finish, TokenEvent
from ktbench.serve.answer import Answer, Delta, EngineFailed, StopSearch, TokenText
from ktbench.serve.tokens import TextTokens

EOS = 258
LETTERS = st.text(alphabet="abé🎈", max_size=30)
STOPS = st.lists(st.text(alphabet="abé🎈", min_size=1, max_size=5), max_size=4)


def event(token: int | None, finish: Finish | None = None, why: str = "") -> TokenEvent:
    return TokenEvent(key="k", token=token, finish=finish, why=why, logprob=-1.0)


def fed(tokens: TextTokens, ids: Sequence[int], stops: Sequence[str] = (), end: Finish = "length") -> list[Delta]:
    """What comes of an answer of these tokens, until it ends."""
    answer, found = Answer(tokens, prompt=(257,), stops=stops), list[Delta]()
    for number, token in enumerate(ids, 1):
        found.append(answer.add(event(token, end if number == len(ids) else None)))
        if found[-1].finish is not None:
            break
    return found


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """By definition: the shortest beginning that contains a stop string, without that one."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(text=LETTERS, stops=STOPS, sizes=st.lists(st.integers(1, 7), min_size=40, max_size=40))
def test_stop_strings_are_found_wherever_a_text_is_divided(text: str, stops: list[str], sizes: list[int]) -> None:
    search, shown, at = StopSearch(stops), "", 0
    wanted, is_cut = cut(text, stops)
    for size in sizes:
        if search.found or at >= len(text):
            break
        shown += search.add(text[at : at + size])
        at += size
        assert wanted.startswith(shown)
    # Of strings that one piece completes the first to be complete counts, so pieces do not matter.
    assert (shown if search.found else shown + search.flush(), search.found) == (wanted, is_cut)


@given(text=LETTERS, stops=STOPS)
def test_an_answer_is_its_text_up_to_a_stop_string(tokens: TextTokens, text: str, stops: list[str]) -> None:
    ids = [*text.encode(), EOS]
    found = fed(tokens, ids, stops, end="stop")
    assert "".join(one.text for one in found) == cut(text, stops)[0]
    assert found[-1].finish == "stop"
    assert all(one.finish is None for one in found[:-1])


@given(ids=st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_bytes_that_are_no_text_are_replaced_as_in_the_whole(tokens: TextTokens, ids: list[int]) -> None:
    found = fed(tokens, ids)
    assert "".join(one.text for one in found) == bytes(ids).decode(errors="replace")


def test_half_a_character_waits_for_the_other_half(tokens: TextTokens) -> None:
    assert [one.text for one in fed(tokens, list("é🎈".encode()))] == ["", "é", "", "", "", "🎈"]


def test_the_token_that_ends_an_answer_is_no_text_though_it_is_a_letter(tokens: TextTokens) -> None:
    found = fed(tokens, list(b"ok\n"), end="stop")
    assert ("".join(one.text for one in found), found[-1].finish) == ("ok", "stop")
    assert "".join(one.text for one in fed(tokens, list(b"ok\n"))) == "ok\n"


@given(text=LETTERS, stops=STOPS)
def test_every_token_that_was_generated_is_listed_with_its_event(
    tokens: TextTokens, text: str, stops: list[str]
) -> None:
    """Whatever is shown of it: the one that ends an answer, and those of a stop string."""
    ids = [*text.encode(), EOS]
    found = fed(tokens, ids, stops, end="stop")
    assert [[one.token for one in delta.tokens] for delta in found] == [[one] for one in ids[: len(found)]]
    raw = bytes(ids[:-1])
    offsets = [len(raw[:at].decode(errors="ignore")) for at in range(len(found))]
    assert [one.offset for delta in found for one in delta.tokens] == offsets


def test_tokens_are_not_listed_where_no_probabilities_are_asked_for(tokens: TextTokens) -> None:
    answer = Answer(tokens, prompt=(257, ord("a")), echo="a")
    assert answer.add(TokenEvent(key="k", token=ord("x"))) == Delta(text="ax")


def test_an_echo_comes_first_with_the_tokens_of_the_prompt(tokens: TextTokens) -> None:
    answer = Answer(tokens, prompt=(257, *"é".encode()), echo="é")
    first = TokenEvent(key="k", token=ord("x"), logprob=-3.0, prompt_logprobs=((-1.0, ()), (-2.0, ())), cached_tokens=2)
    delta = answer.add(first)
    assert delta.text == "éx"
    assert [(one.token, one.logprob, one.offset) for one in delta.tokens] == [
        (257, None, 0), (0xC3, -1.0, 0), (0xA9, -2.0, 0), (ord("x"), -3.0, 1),
    ]  # fmt: skip
    assert (answer.count, answer.cached_tokens) == (1, 2)


def test_an_echo_alone_has_no_token_of_its_own(tokens: TextTokens) -> None:
    answer = Answer(tokens, prompt=(257, ord("a")), echo="a", max_new=0)
    delta = answer.add(
        TokenEvent(key="k", token=ord("x"), finish="length", logprob=-3.0, prompt_logprobs=((-1.0, ()),))
    )
    assert (delta.text, delta.finish, answer.count) == ("a", "length", 0)
    assert [one.token for one in delta.tokens] == [257, ord("a")]


@pytest.mark.parametrize("finish", ["error", "cancelled"])
def test_an_error_of_the_engine_is_no_answer(tokens: TextTokens, finish: Finish) -> None:
    with pytest.raises(EngineFailed, match="no pages"):
        Answer(tokens, prompt=(257,)).add(event(None, finish, "no pages"))


def test_an_end_without_a_token_shows_what_was_held_back(tokens: TextTokens) -> None:
    answer = Answer(tokens, prompt=(257,), stops=["ab"])
    assert answer.add(event(ord("a"))) == Delta(tokens=(TokenText(token=ord("a"), offset=0, logprob=-1.0),))
    assert answer.add(event(None, "length")) == Delta(text="a", finish="length")
