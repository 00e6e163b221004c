"""IFEval: instructions that a program can check, by lm-eval's checks; the score is whether an answer follows all.

Sentences are counted by the rules of Punkt (Kiss & Strunk 2006), since nltk's own version needs downloaded tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from ktbench.eval.tasks.harness import BuiltTask, QuestionSource, build, hub_rows, quiet, shipped_config
from ktbench.eval.tasks.rows import Row, Splits, find_file, json_lines
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

_FILES = ("ifeval_input_data.jsonl", "input_data.jsonl")  # names on the hub and in the authors' repository
_FIELDS = {"prompt": str, "instruction_id_list": list, "kwargs": list}
_RELATIONS = ("less than", "at least")


def follow(ids: Sequence[str], kwargs: Sequence[Mapping[str, object]], answer: str) -> tuple[bool, ...]:
    """Whether `answer` follows each instruction, by IFEval's strict rules. A blank answer follows none.

    `kwargs` are the arguments of each, as in IFEval's and LiveBench's rows; arguments that are None count as absent.
    Raises ValueError for an unknown id and for missing, malformed or extra arguments.
    """
    checked = check_arguments(ids, kwargs)
    if not answer.strip():
        return (False,) * len(ids)
    return tuple(_follows(name, arguments, answer) for name, arguments in zip(ids, checked, strict=True))


def check_arguments(ids: Sequence[str], kwargs: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The arguments of each instruction. Raises ValueError if `follow` would reject these instructions."""
    if unknown := next((name for name in ids if name not in _checks()), None):
        raise ValueError(f"instruction {unknown} is not known; allowed are {', '.join(_checks())}")
    if len(ids) != len(kwargs):
        raise ValueError(f"{len(ids)} instructions, but arguments for {len(kwargs)}")
    return [_arguments(name, given) for name, given in zip(ids, kwargs, strict=True)]


def detector() -> str:
    """The package that detects languages, for captions of scores that depend on it."""
    return f"langdetect {version('langdetect')}"


def argument_names(instruction: str) -> tuple[str, ...]:
    """The arguments of an instruction, by the names in IFEval's rows, including `section_spliter`."""
    return tuple(_checks()[instruction](instruction).get_instruction_args_keys())


def _arguments(instruction: str, given: Mapping[str, object]) -> dict[str, Any]:
    names = argument_names(instruction)
    present = {name: value for name, value in given.items() if value is not None}
    if extra := sorted(present.keys() - set(names)):
        raise ValueError(f"{instruction}: takes no {extra[0]}; allowed are {', '.join(names) or 'no arguments'}")
    for name in names:
        allowed, fits = _kind(name)
        if name not in present:
            raise ValueError(f"{instruction}: {name} is missing; it must be {allowed}")
        if not fits(present[name]):
            raise ValueError(f"{instruction}: {name}={present[name]!r} must be {allowed}")
    return present


def _kind(name: str) -> tuple[str, Callable[[object], bool]]:
    """What an argument must be, in words and as a check."""
    if name.startswith("num_") or name.endswith("frequency"):
        return "a whole number, 0 or above", lambda value: _is_number(value, 0)
    if name.endswith("relation"):
        return " or ".join(map(repr, _RELATIONS)), lambda value: value in _RELATIONS
    return {
        "nth_paragraph": ("a whole number, 1 or above", lambda value: _is_number(value, 1)),
        "letter": ("one character", lambda value: isinstance(value, str) and len(value.strip()) == 1),
        "language": (f"one of {', '.join(_languages())}", lambda value: value in _languages()),
        "keywords": ("a list of words", _is_texts),
        "forbidden_words": ("a list of words", _is_texts),
    }.get(name, ("text that is not blank", _is_text))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_text, value))


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _follows(name: str, arguments: dict[str, Any], answer: str) -> bool:
    match name:
        case "length_constraints:number_sentences":  # lm-eval's needs nltk's trained tables
            return _holds(arguments["relation"], count_sentences(answer), arguments["num_sentences"])
        case "change_case:capital_word_frequency":  # as well
            return _holds(arguments["capital_relation"], count_capital_words(answer), arguments["capital_frequency"])
        case "keywords:letter_frequency":  # lm-eval draws a random letter instead of one outside a to z
            count = answer.lower().count(arguments["letter"].strip().lower())
            return _holds(arguments["let_relation"], count, arguments["let_frequency"])
        case "length_constraints:nth_paragraph_first_word" if arguments["nth_paragraph"] > arguments["num_paragraphs"]:
            return False  # lm-eval draws a random paragraph
    check = _checks()[name](name)
    check.build_description(**_escape(arguments))
    try:
        with quiet():
            return bool(check.check_following(answer))
    except RecursionError:  # for JSON that is nested too deeply
        return False


def _holds(relation: str, count: int, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def _escape(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Words as patterns that match them literally: lm-eval searches for them as regular expressions."""
    cleaned = dict(arguments)
    for name in ("keyword", "section_spliter", "postscript_marker"):
        if name in cleaned and cleaned[name].strip() not in ("P.S.", "P.P.S"):
            cleaned[name] = re.escape(cleaned[name].strip())
    for name in ("keywords", "forbidden_words"):
        if name in cleaned:
            cleaned[name] = [re.escape(word) for word in cleaned[name]]
    return cleaned


def _languages() -> list[str]:
    """The codes of the languages that an instruction may name."""
    _checks()  # imports the instructions without downloads
    from lm_eval.tasks.ifeval.instructions_util import LANGUAGE_CODES

    return sorted(LANGUAGE_CODES)


@cache
def _checks() -> Mapping[str, Any]:
    """lm-eval's class of each instruction; importing it would download tables that no check here needs."""
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0  # else its guesses vary from call to call
    find, nltk.data.find = nltk.data.find, lambda *_, **__: ""
    try:
        from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT
    finally:
        nltk.data.find = find
    table: Mapping[str, Any] = INSTRUCTION_DICT
    return table


def count_capital_words(text: str) -> int:
    """Tokens of nltk's word tokenizer with capital but no small letters: `DON'T` is two."""
    from nltk.tokenize import NLTKWordTokenizer

    return sum(token.isupper() for token in NLTKWordTokenizer().tokenize(text))


_QUOTES = "'‘’“”«»?!"
_BRACKETS = ')";}]*:@({['
_INNER_MARK = rf"(.*)([.?!])(?=[{re.escape(_QUOTES + _BRACKETS)}]"
# A word's last mark that may end a sentence: followed by a sign or, unless it is the last word, at the word's end.
_MARK = re.compile(_INNER_MARK + "|$)")
_MARK_OF_LAST = re.compile(_INNER_MARK + ")")
_NON_BLANK = re.compile(r"\S+")
_CLOSING = re.compile(r"""["')\]}‘’“”«»]+(?=\s|--|$)""")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ABBREVIATIONS = _words(
    # titles and names, companies, months and days, states, places, units and Latin
    "adm col dr gen jr lt maj messrs mr mrs ms ph.d prof rep reps sen sr st "
    "bros cie co corp cos inc ltd "
    "jan feb aug sep sept oct nov dec tues wed fri a.m p.m "
    "ariz calif colo conn fla ga ill kan ky mich minn nev okla ore pa tenn va vt wash wis "
    "ave ct ft v vs mg yr"
)
# Like u.s and j.k; Punkt lacks i.e and e.g, and ends sentences after them.
_ACRONYM = re.compile(r"(?!i\.e$|e\.g$)[a-z](\.[a-z])+")
_INITIALS = frozenset("cdefghklmnprstvw")  # Punkt's: they end no sentence, whatever follows
_NUMBER = re.compile(r"-?[\d.,]*\d")
# Words that newspapers capitalise only at the beginning of a sentence.
_STARTERS = _words(
    "above according along although always among between beyond both but despite does either even eventually finally "
    "furthermore he hence her here however i if in indeed instead it many meanwhile moreover most neither nevertheless "
    "nonetheless nor nothing number overall please separately similarly since so some someone sometimes such the there "
    "therefore these they this though through throughout thus tomorrow ultimately under unless upon were when whether "
    "which while within without yes yesterday yet your"
)
# Not names, so a letter before one of them is not an initial.
_COMMON = _STARTERS | _words(
    "a after again all also an and another any are as at be because before by can could did do during each every find "
    "first for from get give had has have her his how is its last let like make may might more must my next no not now "
    "of on once one or our out over she should take than thank that their them then those to two was we well what "
    "where who whose why will with would you"
)


def count_sentences(text: str) -> int:
    """Sentences of an English text; line ends do not end them, so that a heading belongs to what follows it.

    nltk's English Punkt, which IFEval uses, has learnt its abbreviations and sentence starters from newspapers. Ours
    were chosen to agree with it on LiveBench's prompts and GSM8K. Elsewhere counts differ on 67 of 2891 paragraphs of
    WikiText-2, by one each, and on 2 of 7222 of Shakespeare: after rare abbreviations, initials, ordinals and dots.
    """
    count, start = 0, 0
    words = list(_NON_BLANK.finditer(text))
    for word, following in zip_longest(words, words[1:]):
        mark = _MARK.match(word[0]) if following else _MARK_OF_LAST.match(word[0])
        if mark and _ends(mark[1], mark[2], following[0] if following and mark.end() == len(word[0]) else ""):
            end = word.start() + mark.end()
            closing = _CLOSING.match(text, end)
            count, start = count + bool(text[start:end].strip()), closing.end() if closing else end
    return count + bool(text[start:].strip())


def _ends(before: str, mark: str, following: str) -> bool:
    """Whether a mark ends a sentence; `before` are the characters before it back to a space, `following` the next
    word."""
    if mark != ".":
        return True
    start = max(before.rfind(sign) for sign in _QUOTES + _BRACKETS)
    word = before[max(start, 0) :].lstrip(_BRACKETS + "&#,-`").lower()
    next_word = re.sub(r"\W+$", "", following).lower()
    is_abbreviation = word.rpartition("-")[2] in _ABBREVIATIONS or _ACRONYM.fullmatch(word)
    if before.endswith(".") or is_abbreviation:
        return following[:1].isupper() and next_word in _STARTERS
    if word in _INITIALS:
        return False
    if len(word) == 1 and word.isalpha():
        return not following[:1].islower() and (not next_word.isalpha() or next_word in _COMMON)
    return not (_NUMBER.fullmatch(word) and following[:1].islower())


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("google/IFEval")
    return {"train": json_lines(find_file(suite.data_dir, "ifeval", _FILES), _FIELDS, _check_row)}


def _check_row(row: Row) -> None:
    """Raises ValueError that names the wrong field of a row."""
    if not isinstance(key := row.get("key"), int | str) or isinstance(key, bool):
        raise ValueError(f"key={key!r}: must be a number or text")
    if not row["prompt"].strip():
        raise ValueError("prompt: must be text that is not blank")
    for field, kind, items in (("instruction_id_list", str, "texts"), ("kwargs", dict, "objects")):
        if not row[field] or not all(isinstance(item, kind) for item in row[field]):
            raise ValueError(f"{field}: must be a list of {items} that is not empty")
    check_arguments(row["instruction_id_list"], row["kwargs"])


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    def grade(row: Row, answers: Sequence[str]) -> dict[str, float]:
        return {SCORE: float(all(follow(row["instruction_id_list"], row["kwargs"], answers[0])))}

    config = shipped_config("ifeval", "ifeval", graded_by=grade)
    setting = f"right where all instructions are followed (strict), languages detected by {detector()}"
    return BuiltTask(task=build(config, splits), identity="key", setting=setting)


SOURCES = (QuestionSource(prefix="ifeval", read=_read, build=_build, question_split="train"),)
