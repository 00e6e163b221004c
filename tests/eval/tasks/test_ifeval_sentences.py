"""Sentences as Punkt counts them: what ends one, and what does not."""

from __future__ import annotations

import pytest

from ktbench.eval.tasks.ifeval import count_sentences

TEXTS = [
    ("", 0),
    (" \n", 0),
    ("no mark at all", 1),
    ("One. Two! Three? four", 4),
    ("One.Two", 1),
    ("it ends. it goes on in small letters", 2),
    ("A heading\n\nand its text. More.", 2),
    ("Really?! Yes!!! Good.", 3),
    ("Dr. Smith met Mrs. Brown of Acme Inc. in St. Louis.", 1),
    ("He met J. Doe. They spoke.", 2),
    ("The U.S. Army came. The army of the U.S. However small, it won.", 3),
    ("We met at 5 p.m. However, it rained.", 2),
    ("It costs 3.50 euros. That is version 2.0 of it.", 2),
    ("1. First\n2. Second", 3),
    ("It is no. 5 of them.", 2),
    ("It is item 5. of them.", 1),
    ("He waited... and waited... Finally it came.", 2),
    ('"Go." She went. (He stayed.) Then "no!" he said', 5),
    ("“Go.” She went.", 2),
    ("**Bold.** Next.", 2),
    ("She said: “Is it so?”", 1),
    ("Some fruit, e.g. apples, i.e. those.", 3),
    ("Let it be x. Then solve for plan B. This works.", 3),
    ("Really?!", 2),  # as in Punkt
    ("(It ends.)", 1),
    ("日本語。です。", 1),
]


@pytest.mark.parametrize(("text", "count"), TEXTS)
def test_count(text: str, count: int) -> None:
    assert count_sentences(text) == count


def test_long_words_take_no_long_time() -> None:
    assert count_sentences("a." * 20_000) == 1
    assert count_sentences("." * 40_000 + " a") == 1
    assert count_sentences("a" * 40_000 + "." + ")." * 20_000) == 2
