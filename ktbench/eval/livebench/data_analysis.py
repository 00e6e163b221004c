"""Graders of LiveBench's data analysis tasks, tables included: generated text → its score, 0 to 1."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Hashable, Mapping
from io import StringIO
from typing import TYPE_CHECKING

from ktbench.eval.livebench.extraction import last_boxed, last_fence, last_solution, plain
from ktbench.eval.livebench.question import LiveQuestion

LONGEST = 20_000  # characters of a dictionary that is read


def cta(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the box, else the whole text, is the name of the class or ends with it; only word characters count."""
    boxed = last_boxed(answer)
    extracted, truth = _word(answer if boxed is None else plain(boxed)), _word(question.truth)
    return float(extracted.endswith(truth))


def _word(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


def tablejoin(question: LiveQuestion, answer: str) -> float:
    """Partial: F1 of the mapping's entries, to two decimals. A wrong value counts as wrong and as missing."""
    extracted, truth = _mapping(answer), _mapping(question.truth)
    right, wrong, missing = _tally(extracted, truth)
    return round(2 * right / (2 * right + wrong + missing), 2)


def consecutive_events(question: LiveQuestion, answer: str) -> float:
    """Partial: right over all entries of a list of users and values, to four decimals; as in `tablejoin`."""
    extracted, truth = _events(last_solution(answer) or ""), _events(question.truth)
    right, wrong, missing = _tally(extracted, truth)
    return round(right / (right + wrong + missing), 4)


def _tally(extracted: Mapping[Hashable, object], truth: Mapping[Hashable, object]) -> tuple[int, int, int]:
    """Entries that are right, wrong (unknown key or wrong value), and missing or with another value."""
    right = sum(key in truth and truth[key] == value for key, value in extracted.items())
    return right, len(extracted) - right, len(truth) - right


def _mapping(text: str) -> dict[Hashable, object]:
    """The last `{…}` of a text, as JSON or Python writes it, without entries that are null; empty without any."""
    for found in reversed(re.findall(r"\{[^{}]*\}", text[-LONGEST:])):
        if isinstance(read := _read(found), dict):
            return {key: value for key, value in read.items() if value is not None}
    return {}


def _events(text: str) -> dict[Hashable, object]:
    """The value of each user of a JSON list of objects with user_id; empty for what is no such list."""
    rows = _read(text.strip())
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "user_id" in row for row in rows):
        return {}
    return {str(row["user_id"]): {key: value for key, value in row.items() if key != "user_id"} for row in rows}


def _read(text: str) -> object:
    """The value of JSON or a Python literal; None for what is neither."""
    for reader in (json.loads, _literal):
        try:
            read: object = reader(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return read
    return None


def _literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser's, of escapes in a model's strings
        return ast.literal_eval(re.sub(r":\s*null\b", ": None", text))


if TYPE_CHECKING:
    import pandas

LENIENT = "2025-04-25"  # questions released from then on are read by version 2 of the rules
SAME = 1e-6
FORMATS = ("csv", "tsv", "json", "jsonl", "html", "markdown")


def tablereformat(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the answer, read in the required format, has the truth's columns, rows and cells.

    Rows are compared in order, columns in any. Version 2 of the rules also reads what stands in a solution, and JSON
    that is a list of rows. What cannot be read is 0.
    """
    lenient = question.released >= LENIENT
    form = target_format(question.prompt)
    extracted = (last_solution(answer) if lenient else None) or answer
    try:
        table = read_table(last_fence(extracted) or extracted.strip(), form, lenient=lenient)
    except ValueError:
        return 0.0
    return float(_same_table(_cells(table), _cells(read_table(question.truth, form, lenient=True))))


def unreadable(question: LiveQuestion) -> str:
    """Why no answer can be compared with the truth; '' if one can."""
    if not question.ground_truth:
        return "no ground truth"
    try:
        read_table(question.truth, target_format(question.prompt), lenient=True)
    except (ValueError, ImportError) as error:
        return f"no answer can be compared: {error}"
    return ""


def target_format(prompt: str) -> str:
    """The format that a prompt requires, in lower case. Raises ValueError where it names none."""
    found = re.search(r"\bto (\w+) format|Target Format:\s*(\w+)", prompt, flags=re.IGNORECASE)
    form = (found[1] or found[2]).lower() if found else "no format"
    if form not in FORMATS:
        raise ValueError(f"the prompt requires {form}; tables are read as {', '.join(FORMATS)}")
    return form


def read_table(text: str, form: str, *, lenient: bool) -> pandas.DataFrame:
    """The table of a text in one of `FORMATS`. Raises ValueError for what is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' guesses about an answer do not matter
        try:
            return _parsed(text, form, lenient)
        except (AttributeError, TypeError, KeyError, SyntaxError, RecursionError, OverflowError) as error:
            raise ValueError(f"no table as {form}: {error}") from None


def _parsed(text: str, form: str, lenient: bool) -> pandas.DataFrame:
    """JSON holds rows by index, `{"7": {"column": cell}}`, where `lenient` also a list of rows."""
    import pandas

    file = StringIO(_unframed(text) if form == "markdown" else text)
    match form:
        case "jsonl":
            return pandas.read_json(file, orient="records", lines=True, convert_dates=False)
        case "json":
            orient = "records" if lenient and text.startswith("[") else "index"
            return pandas.read_json(file, orient=orient, convert_dates=False, convert_axes=False)
        case "html":
            return pandas.concat(pandas.read_html(file, flavor="lxml"), axis=0)
    separator = {"csv": ",", "tsv": "\t", "markdown": "|"}[form]
    return pandas.read_csv(file, sep=separator, skipinitialspace=form == "markdown")


def _unframed(text: str) -> str:
    """The rows of a Markdown table without the outer bars and the line below the header."""
    lines = [line.strip().strip("|") for line in text.splitlines() if "|" in line]
    return "\n".join(line for line in lines if not re.fullmatch(r"[\s|:-]+", line))


def _cells(table: pandas.DataFrame) -> list[tuple[str, list[object]]]:
    """The columns by name."""
    named = [(str(name).strip(), table.iloc[:, at].tolist()) for at, name in enumerate(table.columns)]
    return sorted(named, key=lambda column: column[0])


def _same_table(extracted: list[tuple[str, list[object]]], truth: list[tuple[str, list[object]]]) -> bool:
    if [name for name, _ in extracted] != [name for name, _ in truth]:
        return False
    return all(_same_column(ours, theirs) for (_, ours), (_, theirs) in zip(extracted, truth, strict=True))


def _same_column(extracted: list[object], truth: list[object]) -> bool:
    return len(extracted) == len(truth) and all(map(_same_cell, extracted, truth))


def _same_cell(a: object, b: object) -> bool:
    if _is_missing(a) or _is_missing(b):
        return _is_missing(a) and _is_missing(b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) < SAME
    return str(a).strip() == str(b).strip()


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
