"""Questions of the instruction-following tasks, and texts that follow some of their instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.eval.livebench.crafted.words import LATER, Question

TEXTS = (
    "Well then\n\n<<A walk>>\n\n* one\n* two\n- three\n\n"
    "SECTION 1 The river was wide. SECTION 2 The bridge was old.\n\n"
    "P.S. Come soon. My answer is yes.",
    '"The river runs by the old mill, and the bridge is closed. Is there anything else I can help with?"',
    '{"river": ["bridge", 1]}',
    '```json\n{"river": 1}\n```',
    "River one ***\n River two\n***\nRiver three",
    "River.\n\nBridge over it.\n\n\nThe end",
    "A river ****** A bridge",
    "A river ****** A river",
    "****** River ****** Bridge ******",
    "Tell me of the river. Tell me of a bridge",
    "tell me of the river: it is wide. P.P.S. none",
    "RIVER, BRIDGE, MILL",
    "riverside bridges, no mills",
    "'River', said the mill.\n\n\"Bridge\" it was.",
    "<<>>",
    "<< >> <<x>>",
    "<<a\nb>>",
    "* **bold** item\n** no item\n*item\n -item\n*-",
    "PARAGRAPH 1\nx\nPARAGRAPH 2\ny",
    "Section 1 a Section2 b section 3 c",
    "P. S. is this one?",
    "p.s.none",
    "P.P.S",
    "word " * 50,
    "",
    "My answer is maybe",
    'The end."',
    "the END. ",
    "mill",
)
INSTRUCTIONS: Mapping[str, Sequence[Sequence[tuple[str, dict[str, Any]]]]] = {
    "paraphrase": (
        [
            ("keywords:existence", {"keywords": ["river", "bridge"]}),
            ("keywords:forbidden_words", {"forbidden_words": ["mill", "wide"]}),
        ],
        [
            ("startend:quotation", {}),
            ("startend:end_checker", {"end_phrase": "Is there anything else I can help with?"}),
            ("punctuation:no_comma", {}),
        ],
        [
            ("detectable_content:postscript", {"postscript_marker": "P.S."}),
            ("length_constraints:number_words", {"relation": "at least", "num_words": 12}),
        ],
    ),
    "simplify": (
        [
            ("detectable_format:title", {}),
            ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2}),
        ],
        [("detectable_format:number_bullet_lists", {"num_bullets": 3}), ("detectable_format:constrained_response", {})],
        [
            ("length_constraints:number_words", {"relation": "less than", "num_words": 8}),
            ("detectable_content:postscript", {"postscript_marker": "P.P.S"}),
        ],
    ),
    "story_generation": (
        [("length_constraints:number_paragraphs", {"num_paragraphs": 3})],
        [
            (
                "length_constraints:nth_paragraph_first_word",
                {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "bridge"},
            ),
            ("punctuation:no_comma", {}),
        ],
        [("combination:two_responses", {}), ("keywords:existence", {"keywords": ["river"]})],
    ),
    "summarize": (
        [("detectable_format:json_format", {})],
        [
            ("combination:repeat_prompt", {"prompt_to_repeat": "Tell me of the river"}),
            ("keywords:forbidden_words", {"forbidden_words": ["mill"]}),
        ],
        [
            ("startend:end_checker", {"end_phrase": "the end."}),
            ("detectable_format:number_bullet_lists", {"num_bullets": 4}),
            ("detectable_format:title", {}),
        ],
    ),
}


def _following(instructions: Sequence[tuple[str, dict[str, Any]]]) -> Question:
    return {"truth": None, "released": LATER, "instructions": [list(one) for one in instructions]}, TEXTS, []


QUESTIONS: dict[str, list[Question]] = {task: [_following(one) for one in rows] for task, rows in INSTRUCTIONS.items()}
