"""Our checks against the classes of lm-eval's IFEval, on the answers by hand and on answers put together at random.

lm-eval's need nltk's data and two packages more at import; none is needed for what is compared here, so that stand-ins
take their places where they are missing.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.livebench.instructions.following import follow
from ktbench.eval.livebench.instructions.sentences import count_sentences
from ktbench.eval.livebench.instructions.words import count_capital_words
from tests.eval.livebench.test_instructions import CASES
from tests.eval.livebench.test_instructions_sentences import TEXTS

NEEDS_LANGDETECT = {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
NEEDS_PUNKT = {"length_constraints:number_sentences"}
TOKENS = {"change_case:capital_word_frequency"}  # are compared below, as tokens
# Theirs takes words as patterns, and draws letters other than a to z, and paragraphs beyond the last, at random.
READ_OTHERWISE = ("C++", "a.b", "N.B.", "#", "'nth_paragraph': 2, 'first_word': 'a'")
_WORDS = """sun mine bag WEST rain quick Q# a river River's don't DON'T CANNOT U.S. NASA 'A' (B) A,B A--B x:Y AT&T 1
2 , . ? ! * ** *** ****** - -- --- <<t>> << >> [a] [ ] P.S. P.P.S. Section SECTION ``` ```json { } " ' “A” {"a":1}"""
PIECES = _WORDS.split()
ANSWERS = st.lists(st.sampled_from([*PIECES, " ", " ", "\n", "\n\n", "My answer is no.", "Say hello."])).map("".join)


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """lm-eval's class of each instruction."""
    nltk = pytest.importorskip("nltk", reason="nltk, which comes with lm-eval, is not installed")
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "find", lambda *_, **__: "")  # else data is downloaded at import
        for name, has in (("immutabledict", {"immutabledict": dict}), ("langdetect", {})):
            if find_spec(name) is None:
                stand_in = ModuleType(name)
                stand_in.__dict__.update(has)
                patch.setitem(sys.modules, name, stand_in)
        table = importlib.import_module("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT
    for name in [name for name in sys.modules if name.startswith("lm_eval.tasks.ifeval") and name not in before]:
        del sys.modules[name]  # no other test shall find the stand-ins in them
    return dict(table)


def their_verdict(theirs: dict[str, Any], name: str, kwargs: dict[str, Any], answer: str) -> bool:
    instruction = theirs[name](name)
    instruction.build_description(**kwargs)
    return bool(answer.strip() and instruction.check_following(answer))


def comparable(name: str) -> list[tuple[dict[str, Any], str]]:
    """Arguments and answers by hand that both read alike; theirs fails on JSON that is nested too deeply."""
    cases = [(kwargs, answer) for kwargs, answer, _ in CASES[name] if len(answer) < 1000]
    return [case for case in cases if not any(words in str(case[0]) for words in READ_OTHERWISE)]


@pytest.mark.parametrize("name", sorted(CASES.keys() - NEEDS_PUNKT - NEEDS_LANGDETECT - TOKENS))
def test_same_verdicts(theirs: dict[str, Any], name: str) -> None:
    for kwargs, answer in comparable(name):
        assert follow([name], [kwargs], answer) == (their_verdict(theirs, name, kwargs, answer),), (kwargs, answer)

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from([kwargs for kwargs, _ in comparable(name)]), ANSWERS)
    def at_random(kwargs: dict[str, Any], answer: str) -> None:
        assert follow([name], [kwargs], answer) == (their_verdict(theirs, name, kwargs, answer),)

    at_random()


@pytest.mark.parametrize("name", sorted(NEEDS_LANGDETECT))
def test_same_verdicts_on_languages(theirs: dict[str, Any], name: str) -> None:
    pytest.importorskip("langdetect", reason="langdetect is not installed")
    for kwargs, answer in comparable(name):
        assert follow([name], [kwargs], answer) == (their_verdict(theirs, name, kwargs, answer),), (kwargs, answer)


def test_nltk_counts_the_same_sentences() -> None:
    nltk = pytest.importorskip("nltk", reason="nltk, which comes with lm-eval, is not installed")
    try:
        tokenizer = nltk.tokenize.PunktTokenizer("english")
    except LookupError:
        pytest.skip("nltk's data punkt_tab is not installed")
    assert [len(tokenizer.tokenize(text)) for text, _ in TEXTS] == [count_sentences(text) for text, _ in TEXTS]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*PIECES, "IT'S", "I'LL", "O'NEIL", "'TIS", "N'T", "GOTTA", "…", "–", " "])).map(" ".join)
)
def test_nltk_counts_the_same_capital_words(text: str) -> None:
    nltk = pytest.importorskip("nltk", reason="nltk, which comes with lm-eval, is not installed")
    tokens = nltk.tokenize.NLTKWordTokenizer().tokenize(text)
    assert count_capital_words(text) == sum(token.isupper() for token in tokens)
