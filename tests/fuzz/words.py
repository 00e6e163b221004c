"""Strange values and texts that several targets put in the place of right ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

# As plain content, of which JSON has all but the last two.
NUMBERS: Sequence[Any] = (
    *(0, 1, 2, 3, 7, 8, 64, -1, 100, 2**15, 10**8, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30),
    *(0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e-9, 1e9, 1e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS: Sequence[str] = (
    *("", " ", "a", "0", "1e3", "null", "true", "abc", "..", "../x", "/", "a/b", "a" * 300, "é", "\U0001f600"),
    *("\n", "\t", "\x00", "\x1b[31m", "\ud800", "%s", "{}", "$HOME", "<b>", "a,b", "~", "|", "'", '"', "\\"),
)


def scalars() -> st.SearchStrategy[Any]:
    """Numbers, texts, and neither."""
    return (
        st.sampled_from(NUMBERS)
        | st.sampled_from(TEXTS)
        | st.none()
        | st.booleans()
        | st.integers(-3, 300)
        | st.floats(0, 10)
        | st.text(max_size=12)
    )


def contents() -> st.SearchStrategy[Any]:
    """Plain content: mostly a scalar, else a list or a mapping of some."""
    nested = st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
        max_leaves=6,
    )
    return scalars() | nested


def places() -> st.SearchStrategy[list[int]]:
    """Where something in nested content is: at each level a number, taken modulo how many entries there are."""
    return st.lists(st.integers(0, 40), min_size=1, max_size=8)


def changed(content: Any, place: Sequence[int], change: str, value: Any) -> Any:
    """The content with one entry replaced, taken away, doubled, or a new one beside it."""
    if not isinstance(content, (dict, list)) or not content or not place:
        return value if change == "set" else content
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[place[0] % len(keys)]
    if len(place) > 1 and isinstance(content[key], (dict, list)) and content[key]:
        new = changed(content[key], place[1:], change, value)
        return _with(content, key, new)
    if change == "set":
        return _with(content, key, value)
    if change == "drop":
        kept = [one for one in keys if one != key]
        return {one: content[one] for one in kept} if isinstance(content, dict) else [content[one] for one in kept]
    if change == "wrap":
        return _with(content, key, [content[key]])
    return content | {str(value): content[key]} if isinstance(content, dict) else [*content, content[key]]


def _with(content: Any, key: Any, value: Any) -> Any:
    if isinstance(content, dict):
        return {**content, key: value}
    return [*content[:key], value, *content[key + 1 :]]


CHANGES = ("set", "set", "set", "drop", "wrap", "double")


def changes(most: int = 3) -> st.SearchStrategy[list[Any]]:
    """Some changes of nested content, as `changed` makes them."""
    return st.lists(st.tuples(places(), st.sampled_from(CHANGES), contents()).map(list), min_size=1, max_size=most)


def all_changed(content: Any, made: Sequence[Any]) -> Any:
    """The content after changes."""
    for place, change, value in made:
        content = changed(content, place, change, value)
    return content
