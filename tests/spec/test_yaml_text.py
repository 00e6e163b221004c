"""YAML of any content is read as PyYAML reads it, or refused in one line within moments."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.yaml_text import MOST_BYTES, plain_yaml

# PyYAML writes these three characters as they are and reads them as ends of lines; texts such as 1e9, which are no
# numbers to it, it writes without quotes.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029")).filter(
    lambda text: not re.fullmatch(r"[-+]?[0-9_.]+[eE][-+]?[0-9]+", text)
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def doubled(levels: int, width: int, entry: str) -> str:
    """Each anchor stands for the one before it so many times."""
    lines = [f"a0: &a0 {entry}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@given(PLAIN)
def test_what_can_be_written_is_read(content: Any) -> None:
    assert plain_yaml(yaml.safe_dump(content, allow_unicode=True), "here", "anything") == content


def test_anchors_and_merged_keys_are_read() -> None:
    text = "base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\nsame: *base"
    assert plain_yaml(text, "here", "anything") == {
        "base": {"a": 1, "b": 2},
        "mine": {"a": 1, "b": 3},
        "same": {"a": 1, "b": 2},
    }


@pytest.mark.parametrize(
    ("text", "value"), [("1e9", 1e9), ("-2.5E-3", -0.0025), (".5e1", 5.0), ("12", 12), ("1e", "1e")]
)
def test_numbers_with_exponents_are_numbers(text: str, value: Any) -> None:
    assert plain_yaml(text, "here", "anything") == value


def test_a_date_is_a_text() -> None:
    assert plain_yaml("2026-11-25", "here", "anything") == "2026-11-25"


BAD = {
    "aliases of aliases": doubled(9, 9, "[x, x, x, x, x, x, x, x, x]"),
    "merges of merges": "a0: &a0 {x: 1}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)),
    "an alias in itself": "a: &a [*a]",
    "an alias in itself, as a key": "a: &a {? *a : 1}",
    "too many values": "[" + "1," * 12_000 + "]",
    "too many aliases": "a: &a 1\nb: [" + "*a, " * 12_000 + "]",
    "too deep": "[" * 10_000,
    "too deep, in blocks": "- " * 10_000,
    "too long": "#" * (MOST_BYTES + 1),
    "100 MB": "title: " + "x" * 100_000_000,
    "half a character": r'"\ud800"',
    "a key twice": "a: 1\na: 2",
    "a class": "!!python/object:os.system {}",
    "a key that is a list": "? [1]\n: 2",
    "several documents": "a: 1\n---\na: 2",
    "a number that is none": "!!int x",
    "a date that is none": "!!timestamp x",
    "too many digits": "1" * 5_000,
    "an unknown alias": "*a",
    "a control character": "a: \x07",
    "broken": "a: [",
}


@pytest.mark.parametrize("what", BAD)
def test_bad_yaml_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(ValueError) as refused:
        plain_yaml(BAD[what], "here.yaml", "a machine")
    assert str(refused.value).startswith("here.yaml: is ")
    assert "\n" not in str(refused.value)


@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"%@`#? \n\t<0.e~")))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        plain_yaml(text, "here.yaml", "a machine")
    except ValueError as error:
        assert str(error).startswith("here.yaml: is ")
        assert "\n" not in str(error)
