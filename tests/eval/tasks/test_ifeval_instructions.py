"""Every instruction of IFEval against answers by hand that follow it, do not, and seem to."""

from __future__ import annotations

import json

import pytest

from ktbench.eval.tasks.ifeval import argument_names, check_arguments, follow
from tests.eval.conftest import SHARED, needs_shared_data

AT_LEAST, LESS_THAN = "at least", "less than"
TWO_BULLETS = {"num_bullets": 2}
SECTIONS = {"section_spliter": "Section", "num_sections": 2}
THREE_PARAGRAPHS = {"num_paragraphs": 3}
SECOND_IS_RIVER = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "river"}

# For each instruction: its arguments, an answer, whether that follows it.
CASES = {
    "keywords:existence": [
        ({"keywords": ["sun", "mine"]}, "The Sun shone over the mine.", True),
        ({"keywords": ["sun", "mine"]}, "The sun shone.", False),
        ({"keywords": ["sun", "mine"]}, "It was sunny, and I was determined.", True),  # inside other words counts
        ({"keywords": ["sun"]}, "The s un shone.", False),
        ({"keywords": ["C++"]}, "Written in CCC", False),  # a keyword is no pattern
        ({"keywords": ["C++"]}, "Written in c++.", True),
    ],
    "keywords:frequency": [
        ({"keyword": "rain", "frequency": 2, "relation": AT_LEAST}, "Rain and training.", True),
        ({"keyword": "rain", "frequency": 2, "relation": AT_LEAST}, "Rain.", False),
        ({"keyword": "rain", "frequency": 2, "relation": LESS_THAN}, "Rain.", True),
        ({"keyword": "rain", "frequency": 1, "relation": LESS_THAN}, "RAIN", False),
        ({"keyword": " rain ", "frequency": 1, "relation": AT_LEAST}, "rain", True),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["bag", "west"]}, "Go north.", True),
        ({"forbidden_words": ["bag", "west"]}, "Go WEST!", False),
        ({"forbidden_words": ["bag", "west"]}, "A western garbage heap.", True),  # only as words of their own
        ({"forbidden_words": ["bag", "west"]}, "The west-wind.", False),
        ({"forbidden_words": ["a.b"]}, "axb", True),
    ],
    "keywords:letter_frequency": [
        ({"letter": "q", "let_frequency": 2, "let_relation": AT_LEAST}, "Quite quick", True),
        ({"letter": "Q", "let_frequency": 2, "let_relation": AT_LEAST}, "quick", False),
        ({"letter": "q", "let_frequency": 1, "let_relation": LESS_THAN}, "none", True),
        ({"letter": "#", "let_frequency": 2, "let_relation": AT_LEAST}, "#a #b", True),
    ],
    "language:response_language": [
        ({"language": "en"}, "This is the answer to the question that you have asked of me.", True),
        ({"language": "de"}, "This is the answer to the question that you have asked of me.", False),
        ({"language": "hi"}, "यह एक अच्छा उत्तर है और मैं इसे हिन्दी में लिख रहा हूँ।", True),
        ({"language": "en"}, "यह एक अच्छा उत्तर है और मैं इसे हिन्दी में लिख रहा हूँ।", False),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 2, "relation": AT_LEAST}, "One. Two?", True),
        ({"num_sentences": 2, "relation": LESS_THAN}, "One. Two?", False),
        ({"num_sentences": 2, "relation": LESS_THAN}, "Dr. Smith paid 3.50 to Mr. J. Doe", True),
    ],
    "length_constraints:number_paragraphs": [
        (THREE_PARAGRAPHS, "a\n***\nb\n***\nc", True),
        (THREE_PARAGRAPHS, "***\na\n***\nb\n***\nc\n***", True),  # blank ones at the ends do not count
        (THREE_PARAGRAPHS, "a\n***\n\n***\nb\n***\nc", False),  # inside they spoil it
        (THREE_PARAGRAPHS, "a\n\nb\n\nc", False),
        ({"num_paragraphs": 1}, "a\n\nb", True),
        ({"num_paragraphs": 0}, "***", True),
        ({"num_paragraphs": 2}, "a *** b", True),
    ],
    "length_constraints:number_words": [
        ({"num_words": 4, "relation": AT_LEAST}, "I don't know", True),  # don, t
        ({"num_words": 4, "relation": LESS_THAN}, "I don't know", False),
        ({"num_words": 3, "relation": LESS_THAN}, "well-known", True),
        ({"num_words": 2, "relation": AT_LEAST}, "word ... - !", False),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (SECOND_IS_RIVER, "One.\n\nRiver banks.", True),
        (SECOND_IS_RIVER, "One.\n\n\"River's banks.", True),
        (SECOND_IS_RIVER, "One.\n\nRivers.", False),
        (SECOND_IS_RIVER, "River.\n\nTwo.", False),
        (SECOND_IS_RIVER, "One.\nRiver.", False),
        (SECOND_IS_RIVER, "One.\n\nRiver.\n\nThree.", False),
        (SECOND_IS_RIVER, "One.\n\n\n\nRiver.", False),  # the second is blank
        (SECOND_IS_RIVER, "One.\n\nRiver.\n\n", True),
        ({"num_paragraphs": 1, "nth_paragraph": 2, "first_word": "a"}, "a", False),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, "Dear [name], of [town]", True),
        ({"num_placeholders": 2}, "Dear [name]", False),
        ({"num_placeholders": 1}, "Dear [na\nme]", False),
        ({"num_placeholders": 2}, "[[name]]", False),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Bye.\n\np. s. more", True),
        ({"postscript_marker": "P.S."}, "Bye.\nPS: more", False),
        ({"postscript_marker": "P.P.S"}, "Bye.\nP.P.S. more", True),
        ({"postscript_marker": "P.P.S"}, "Bye.\nP.S. more", False),
        ({"postscript_marker": "P.S."}, "Bye.\nP.P.S. more", True),  # as in IFEval
        ({"postscript_marker": "N.B."}, "n.b. this", True),
        ({"postscript_marker": "N.B."}, "nxbx this", False),
    ],
    "detectable_format:number_bullet_lists": [
        (TWO_BULLETS, "Here:\n* one\n* two", True),
        (TWO_BULLETS, "- one\n  - two", True),
        (TWO_BULLETS, "* one\n* two\n* three", False),
        (TWO_BULLETS, "* one\n**two**\n* three", True),  # bold is no bullet
        (TWO_BULLETS, "* one\n---\n", True),  # a rule is, as in IFEval
        (TWO_BULLETS, "one * two * three", False),
        (TWO_BULLETS, "• one\n• two", False),
    ],
    "detectable_format:constrained_response": [
        ({}, "My answer is maybe.", True),
        ({}, "Well. My answer is no. That is all.", True),
        ({}, "my answer is no.", False),
        ({}, "My answer is no", False),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, "*one* and *two*", True),
        ({"num_highlights": 2}, "**one** and *two*", True),
        ({"num_highlights": 2}, "*one* and *two", False),
        ({"num_highlights": 1}, "* *", False),
        ({"num_highlights": 1}, "*one\ntwo*", False),
    ],
    "detectable_format:multiple_sections": [
        (SECTIONS, "Section 1\na\nSection 2\nb", True),
        (SECTIONS, "Section1 a Section2 b Section3 c", True),
        (SECTIONS, "SECTION 1\na\nSECTION 2\nb", False),
        (SECTIONS, "Section one\na\nSection two\nb", False),
        (SECTIONS, "Section  1\na\nSection  2\nb", False),
    ],
    "detectable_format:json_format": [
        ({}, '{"a": [1, 2]}', True),
        ({}, '```json\n{"a": 1}\n```', True),
        ({}, '```\n"text"\n```', True),
        ({}, '{"a": 1} Done.', False),
        ({}, 'Sure!\n```json\n{"a": 1}\n```', False),
        ({}, "{'a': 1}", False),
        ({}, "[" * 200_000, False),  # nested too deeply to be read
    ],
    "detectable_format:title": [
        ({}, "<<poem of joy>>\nO joy", True),
        ({}, "<poem of joy>\nO joy", False),
        ({}, "<< >>\nO joy", False),
        ({}, "<<poem\nof joy>>", False),
    ],
    "combination:two_responses": [
        ({}, "One.\n******\nTwo.", True),
        ({}, "******\nOne.\n******\nTwo.\n******", True),
        ({}, "One.\n******\nOne. ", False),
        ({}, "One.\n******\n\n******\nTwo.", False),
        ({}, "One.\n***\nTwo.", False),
        ({}, "One.\n******\nTwo.\n******\nThree.", False),
        ({}, "******", False),
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Say hello. "}, "Say hello. Hello!", True),
        ({"prompt_to_repeat": "Say hello. "}, "  say HELLO. Hello!", True),
        ({"prompt_to_repeat": "Say hello. "}, "Sure. Say hello. Hello!", False),
        ({"prompt_to_repeat": "Say hello. "}, "Say  hello. Hello!", False),
    ],
    "startend:end_checker": [
        ({"end_phrase": "Any other questions?"}, "No. any other questions?\n", True),
        ({"end_phrase": "Any other questions?"}, '"No. Any other questions?"', True),
        ({"end_phrase": "Any other questions?"}, "Any other questions? No.", False),
        ({"end_phrase": "Any other questions?"}, "Any other questions", False),
    ],
    "startend:quotation": [
        ({}, ' "All of it." ', True),
        ({}, '"All" of it', False),
        ({}, "“All of it.”", False),
        ({}, '"', False),
    ],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": AT_LEAST}, "NASA and the U.S. won", True),
        ({"capital_frequency": 2, "capital_relation": LESS_THAN}, "NASA won Gold", True),
        ({"capital_frequency": 2, "capital_relation": AT_LEAST}, "BUILT-IN", False),
        ({"capital_frequency": 2, "capital_relation": AT_LEAST}, "DON'T", True),  # DO, N'T
    ],
    "change_case:english_capital": [
        ({}, "HELLO WORLD, THIS IS AN ALL CAPITAL ANSWER.", True),
        ({}, "HELLO WORLD, THIS IS AN ALL CAPITAL ANSWEr.", False),
        ({}, "ЭТО ХОРОШИЙ ОТВЕТ НА ТОТ ВОПРОС, КОТОРЫЙ ВЫ МНЕ ЗАДАЛИ.", False),
        ({}, "42", False),
    ],
    "change_case:english_lowercase": [
        ({}, "this is the answer to the question that you have asked of me today.", True),
        ({}, "This is the answer to the question that you have asked of me today.", False),
        ({}, "это хороший ответ на тот вопрос, который вы мне задали.", False),
    ],
    "punctuation:no_comma": [
        ({}, "No commas; none.", True),
        ({}, "One, two", False),
        ({}, "1,000", False),
    ],
}


def test_every_instruction_has_cases_of_both_outcomes() -> None:
    with pytest.raises(ValueError) as error:
        check_arguments(["no:such"], [{}])
    assert set(str(error.value).partition("allowed are ")[2].split(", ")) == CASES.keys()
    assert all(argument_names(name) == tuple(cases[0][0]) for name, cases in CASES.items())
    assert all({follows for *_, follows in cases} == {True, False} for cases in CASES.values())


@pytest.mark.parametrize("name", CASES)
def test_instruction(name: str) -> None:
    for kwargs, answer, follows in CASES[name]:
        assert follow([name], [kwargs], answer) == (follows,), (kwargs, answer[:80])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("answer", ["", " \n\t"])
def test_a_blank_answer_follows_nothing(name: str, answer: str) -> None:
    assert follow([name], [CASES[name][0][0]], answer) == (False,)


def test_instructions_are_judged_one_by_one() -> None:
    ids = ["punctuation:no_comma", "startend:quotation", "detectable_format:title"]
    assert follow(ids, [{}, {"num_words": None}, {}], '"a, <<b>>"') == (False, True, True)


WORDS = "length_constraints:number_words"


@pytest.mark.parametrize(
    ("ids", "kwargs", "why"),
    [
        (["count:numbers"], [{}], "count:numbers is not known; allowed are keywords:existence"),
        ([WORDS], [], "1 instructions, but arguments for 0"),
        ([WORDS], [{"relation": AT_LEAST}], f"{WORDS}: num_words is missing; it must be a whole number, 0 or above"),
        ([WORDS], [{"num_words": None, "relation": AT_LEAST}], "num_words is missing"),
        ([WORDS], [{"num_words": -1, "relation": AT_LEAST}], "num_words=-1 must be a whole number, 0 or above"),
        ([WORDS], [{"num_words": True, "relation": AT_LEAST}], "num_words=True must be"),
        ([WORDS], [{"num_words": 3, "relation": "at most"}], "relation='at most' must be 'less than' or 'at least'"),
        ([WORDS], [{"num_words": 3, "relation": []}], "relation=.. must be"),
        ([WORDS], [{"num_words": 3, "relation": AT_LEAST, "n": 1}], "takes no n; allowed are num_words, relation"),
        (["punctuation:no_comma"], [{"n": 1}], "takes no n; allowed are no arguments"),
        (["keywords:existence"], [{"keywords": "sun"}], "keywords='sun' must be a list of words"),
        (["keywords:existence"], [{"keywords": []}], "keywords=.. must be a list of words"),
        (["keywords:existence"], [{"keywords": ["sun", ""]}], "must be a list of words"),
        (["startend:end_checker"], [{"end_phrase": " "}], "end_phrase=' ' must be text that is not blank"),
        (["language:response_language"], [{"language": "tlh"}], "language='tlh' must be one of ar, bg"),
        (
            ["keywords:letter_frequency"],
            [{"letter": "ab", "let_frequency": 1, "let_relation": AT_LEAST}],
            "letter='ab' must be one character",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 1, "nth_paragraph": 0, "first_word": "a"}],
            "nth_paragraph=0 must be a whole number, 1 or above",
        ),
    ],
)
def test_malformed_arguments_are_refused(ids: list[str], kwargs: list[dict[str, object]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_arguments(ids, kwargs)
    with pytest.raises(ValueError, match=why):
        follow(ids, kwargs, "")


@needs_shared_data
@pytest.mark.parametrize("task", ["paraphrase", "simplify", "story_generation", "summarize"])
def test_instructions_of_livebench_are_known(task: str) -> None:
    rows = [
        json.loads(line)
        for line in (SHARED / f"livebench/questions/instruction_following__{task}.jsonl").read_bytes().splitlines()
    ]
    assert rows
    for row in rows:
        check_arguments(row["instruction_id_list"], row["kwargs"])
        assert follow(row["instruction_id_list"], row["kwargs"], row["turns"][0])
