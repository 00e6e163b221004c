"""Grader of LiveBench's tablereformat: a table rewritten in another format."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from io import StringIO
from typing import TYPE_CHECKING

from ktbench.eval.livebench.extraction import last_fence, last_solution
from ktbench.eval.livebench.question import LiveQuestion

if TYPE_CHECKING:
    import pandas

LENIENT = "2025-04-25"  # questions released from then on are read by version 2 of the rules
SAME = 1e-6


def tablereformat(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the answer, read in the format asked for, has the truth's columns, rows and cells.

    Rows are compared in order, columns in any. Version 2 of the rules also reads what stands in a solution, and JSON
    that is a list of rows. What cannot be read is 0.
    """
    lenient = question.released >= LENIENT
    form = target_format(question.prompt)
    said = (last_solution(answer) if lenient else None) or answer
    try:
        table = read_table(last_fence(said) or said.strip(), form, lenient=lenient)
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
    """The format that a prompt asks for, in lower case. Raises ValueError where it names none."""
    found = re.search(r"\bto (\w+) format|Target Format:\s*(\w+)", prompt, flags=re.IGNORECASE)
    form = (found[1] or found[2]).lower() if found else "no format"
    if form not in READERS:
        raise ValueError(f"the prompt asks for {form}; tables are read as {', '.join(READERS)}")
    return form


def read_table(text: str, form: str, *, lenient: bool) -> pandas.DataFrame:
    """The table of a text in a format of `READERS`, with pandas. Raises ValueError for what is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas guesses of a model's answer is nobody's concern
        try:
            return READERS[form](text, lenient)
        except (AttributeError, TypeError, KeyError, SyntaxError, RecursionError, OverflowError) as error:
            raise ValueError(f"no table as {form}: {error}") from None


def _csv(text: str, lenient: bool) -> pandas.DataFrame:
    import pandas

    return pandas.read_csv(StringIO(text))


def _tsv(text: str, lenient: bool) -> pandas.DataFrame:
    import pandas

    return pandas.read_csv(StringIO(text), sep="\t")


def _json_lines(text: str, lenient: bool) -> pandas.DataFrame:
    import pandas

    return pandas.read_json(StringIO(text), orient="records", lines=True, convert_dates=False)


def _json(text: str, lenient: bool) -> pandas.DataFrame:
    """Rows under their index, `{"7": {"column": cell}}`; where that is allowed a list of rows, too."""
    import pandas

    orient = "records" if lenient and text.startswith("[") else "index"
    return pandas.read_json(StringIO(text), orient=orient, convert_dates=False, convert_axes=False)


def _html(text: str, lenient: bool) -> pandas.DataFrame:
    import pandas

    return pandas.concat(pandas.read_html(StringIO(text), flavor="lxml"), axis=0)


def _markdown(text: str, lenient: bool) -> pandas.DataFrame:
    """Without the outer bars and the line below the header."""
    import pandas

    lines = [line.strip().strip("|") for line in text.splitlines() if "|" in line]
    rows = [line for line in lines if not re.fullmatch(r"[\s|:-]+", line)]
    return pandas.read_csv(StringIO("\n".join(rows)), sep="|", skipinitialspace=True)


READERS: Mapping[str, Callable[[str, bool], pandas.DataFrame]] = {
    "csv": _csv,
    "tsv": _tsv,
    "json": _json,
    "jsonl": _json_lines,
    "html": _html,
    "markdown": _markdown,
}


def _cells(table: pandas.DataFrame) -> list[tuple[str, list[object]]]:
    """The columns by name."""
    named = [(str(name).strip(), table.iloc[:, at].tolist()) for at, name in enumerate(table.columns)]
    return sorted(named, key=lambda column: column[0])


def _same_table(said: list[tuple[str, list[object]]], truth: list[tuple[str, list[object]]]) -> bool:
    if [name for name, _ in said] != [name for name, _ in truth]:
        return False
    return all(_same_column(ours, theirs) for (_, ours), (_, theirs) in zip(said, truth, strict=True))


def _same_column(said: list[object], truth: list[object]) -> bool:
    return len(said) == len(truth) and all(map(_same_cell, said, truth))


def _same_cell(a: object, b: object) -> bool:
    if _is_missing(a) or _is_missing(b):
        return _is_missing(a) and _is_missing(b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) < SAME
    return str(a).strip() == str(b).strip()


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
