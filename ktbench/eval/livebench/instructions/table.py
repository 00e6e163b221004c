"""The 25 instructions of IFEval: the check of each and the names of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ktbench.eval.livebench.instructions import form, language, length, words


@dataclass(frozen=True, slots=True)
class Instruction:
    """`check(answer, *arguments)` says whether an answer that is not blank follows it."""

    check: Callable[..., bool]
    arguments: tuple[str, ...] = ()


INSTRUCTIONS = {
    "keywords:existence": Instruction(words.has_keywords, ("keywords",)),
    "keywords:frequency": Instruction(words.keyword_frequency, ("keyword", "frequency", "relation")),
    "keywords:forbidden_words": Instruction(words.avoids_words, ("forbidden_words",)),
    "keywords:letter_frequency": Instruction(words.letter_frequency, ("letter", "let_frequency", "let_relation")),
    "language:response_language": Instruction(language.is_in, ("language",)),
    "length_constraints:number_sentences": Instruction(length.number_sentences, ("num_sentences", "relation")),
    "length_constraints:number_paragraphs": Instruction(length.number_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": Instruction(length.number_words, ("num_words", "relation")),
    "length_constraints:nth_paragraph_first_word": Instruction(
        length.nth_paragraph_first_word, ("num_paragraphs", "nth_paragraph", "first_word")
    ),
    "detectable_content:number_placeholders": Instruction(form.number_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": Instruction(form.has_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": Instruction(form.number_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": Instruction(form.has_constrained_response),
    "detectable_format:number_highlighted_sections": Instruction(form.number_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": Instruction(form.number_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": Instruction(form.is_json),
    "detectable_format:title": Instruction(form.has_title),
    "combination:two_responses": Instruction(form.is_two_responses),
    "combination:repeat_prompt": Instruction(form.repeats_prompt, ("prompt_to_repeat",)),
    "startend:end_checker": Instruction(form.ends_with, ("end_phrase",)),
    "startend:quotation": Instruction(form.is_quoted),
    "change_case:capital_word_frequency": Instruction(
        words.capital_word_frequency, ("capital_frequency", "capital_relation")
    ),
    "change_case:english_capital": Instruction(language.is_english_capital),
    "change_case:english_lowercase": Instruction(language.is_english_lowercase),
    "punctuation:no_comma": Instruction(words.has_no_comma),
}
