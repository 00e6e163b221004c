"""Where answers stand in a text, and how far lists are apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.livebench.extraction import (
    ANYWHERE,
    edit_distance,
    last_box,
    last_line,
    last_solution,
    partial_score,
    solutions,
    solutions_or_between,
    without,
    without_thoughts,
)

WORDS = st.text(alphabet="abc xyz,.123", max_size=12)
LISTS = st.lists(st.integers(0, 3), max_size=7)


def test_thoughts_go_wherever_they_stand() -> None:
    assert without_thoughts("<think>a\nb</think>c<think></think>d") == "cd"
    assert without_thoughts("a</think>b<think>c") == "a</think>b<think>c"


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\fbox{4}", "4"),
        (r"\boxed{5} \fbox{4}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} \boxed{2", None),
        (r"} \boxed{}", ""),
        (r"$\boxed 3$.", "3"),
        (r"\boxed {5 }", "{5 }"),
        (r"\boxed 3, and \boxed{4}", r"3, and \boxed{4}"),
        (r"\boxed{$7$}", "7"),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_the_last_box(text: str, boxed: str | None) -> None:
    assert last_box(text) == boxed


@pytest.mark.parametrize("text", [r"\boxed3{4}", r"\boxed\text{A}", r"\boxed{\fbox 3}"])
def test_a_box_without_a_brace_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="box"):
        last_box(text)


def test_a_text_full_of_open_boxes_is_read_in_no_time() -> None:
    assert last_box(r"\boxed{" * 100_000) is None


@given(WORDS, st.lists(WORDS, max_size=3), WORDS)
@settings(max_examples=50)
def test_what_is_wrapped_is_found_again(before: str, wrapped: list[str], after: str) -> None:
    assert solutions(before + "".join(f"<solution>{one}</solution>{after}" for one in wrapped)) == wrapped
    boxes = before + "".join(rf"\boxed{{{one}}}{after}" for one in wrapped)
    assert last_box(boxes) == (wrapped[-1] if wrapped else None)
    assert last_box(rf"\boxed{{{boxes}}}") == (wrapped[-1] if wrapped else before + "")


def test_tags_may_be_in_capitals_and_over_lines_where_a_task_reads_these() -> None:
    assert last_solution("<solution>a</solution><solution> b\n</solution>") == "a"
    assert last_solution("<solution>a</solution><Solution> b\n</SOLUTION>", ANYWHERE) == " b\n"
    assert last_solution("<solution>a") is None
    assert solutions_or_between("x</solution>a</solution>b") == ["a"]
    assert solutions_or_between("<solution>c</solution>a</solution>") == ["c"]


def test_lines_and_parts() -> None:
    assert last_line("a\n b \n\n  ") == " b"
    assert last_line("") == ""
    assert without("abcabc", "bc", "a") == ""


def slow_distance(a: list[int], b: list[int]) -> int:
    """By its definition."""
    if not a or not b:
        return len(a) + len(b)
    kept = slow_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(kept, slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1)


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
@settings(max_examples=30)
def test_the_edit_distance_is_levenshteins(a: list[int], b: list[int]) -> None:
    assert edit_distance(a, b) == slow_distance(a, b)


@given(LISTS, LISTS, LISTS)
@settings(max_examples=50)
def test_the_edit_distance_is_a_metric(a: list[int], b: list[int], c: list[int]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@pytest.mark.parametrize(
    ("right", "score"),
    [((True, True), 1.0), ((True, False), 0.25), ((False,) * 3, 0.0), ((True, True, False), 1 / 3)],
)
def test_a_partial_score_is_between_all_and_the_fraction(right: tuple[bool, ...], score: float) -> None:
    assert partial_score(right, len(right)) == pytest.approx(score)
