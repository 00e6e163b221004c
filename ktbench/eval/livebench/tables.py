"""LiveBench's tablereformat by its own rules: the table of an answer, read by pandas, against the true one."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import TYPE_CHECKING

from ktbench.eval.livebench.extraction import solutions
from ktbench.eval.livebench.question import LiveQuestion

if TYPE_CHECKING:
    from pandas import DataFrame

VERSION_2 = "2025-04-25"  # questions released from then on are read by version 2 of the rules
SAME = 1e-6
FORMATS = ("csv", "tsv", "json", "jsonl", "html", "markdown")
_SEPARATORS: Mapping[str, str] = {"csv": ",", "tsv": "\t"}


def tablereformat(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the answer, read in the required format, has the truth's columns in any order, rows and cells.

    An answer that is not a table as a whole may contain one: from the line of its header on, or line by line (JSONL).
    """
    form, version = target_format(question.prompt), _version(question)
    text, truth = _bare_answer(answer), read_table(question.truth, form, version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' guesses about an answer do not matter
        try:
            table: DataFrame | None = read_table(text, form, version)
        except Exception:  # whatever pandas raises about a text
            table = _table_within(text, form, truth)
        return float(table is not None and (_is_same(table, truth) or _holds_same(text, form, truth)))


def unreadable(question: LiveQuestion) -> str:
    """Why no answer can be compared with the truth; '' if one can."""
    if not question.ground_truth:
        return "no ground truth"
    try:
        read_table(question.truth, target_format(question.prompt), _version(question))
    except Exception as error:  # whatever pandas raises about a text
        return f"no answer can be compared: {error}"
    return ""


def _version(question: LiveQuestion) -> int:
    return 2 if question.released >= VERSION_2 else 1


def target_format(prompt: str) -> str:
    """The format that a prompt requires, in lower case. Raises ValueError if it names none."""
    named = re.findall(r"^.*Target Format: (.*)$", prompt, flags=re.MULTILINE)
    named = named[-1:] or re.findall(r"\bto (\w+) format", prompt)[:1]
    form = named[0].strip().lower() if named else "no format"
    if form not in FORMATS:
        raise ValueError(f"the prompt requires {form}; tables are read as {', '.join(FORMATS)}")
    return form


def _bare_answer(answer: str) -> str:
    """The text of the last solution or fence, else the whole text, without fences and introductions of a table."""
    while marked := solutions(answer, re.DOTALL):
        answer = marked[-1].strip()
    for language in ("json", "html"):
        if fenced := re.findall(rf"```{language}\n(.*?)```", answer, flags=re.DOTALL):
            return _without_introduction(fenced[-1].strip())
    text = re.sub(r"^```.*\n", "", answer).replace("&amp;", "&").replace("```", "")
    return _without_introduction(text.strip())


def _without_introduction(text: str) -> str:
    """The text without words such as `Here is the table:` at its beginning."""
    return re.sub(r"^\s*(Here|Input)\b.*?\b(format|table)\s*[:)]\s*", "", text, flags=re.IGNORECASE).strip()


def read_table(text: str, form: str, version: int) -> DataFrame:
    """The table of a text in one of `FORMATS`, read by a version of the rules. Raises what pandas raises."""
    import pandas

    match form:
        case "csv" | "tsv":
            return pandas.read_csv(StringIO(text), sep=_SEPARATORS[form])
        case "json":
            return _read_first_layout(text, _JSON_1 if version == 1 else _JSON_2)
        case "jsonl":
            return _read_json(text, "lines")
        case "html":
            return pandas.concat(pandas.read_html(StringIO(text), flavor="lxml"), axis=0)
    return _read_markdown_1(text) if version == 1 else _read_markdown_2(text)


_JSON_1 = ("index", "records", "lines", "table", "values")
_JSON_2 = ("table", "index", "records")


def _read_first_layout(text: str, layouts: Iterable[str]) -> DataFrame:
    """The table in the first readable JSON layout. Raises ValueError if none is readable."""
    for layout in layouts:
        try:
            return _read_json(text, layout)
        except Exception:  # whatever pandas raises about a text
            continue
    raise ValueError("no table in JSON")


def _read_json(text: str, layout: str) -> DataFrame:
    import pandas

    is_lines = layout == "lines"
    return pandas.read_json(StringIO(text), orient="records" if is_lines else layout, lines=is_lines)


def _read_markdown_1(text: str) -> DataFrame:
    """Version 1: the line below the header is a row, and the first column an index that is not compared."""
    import pandas

    return pandas.read_table(StringIO(text), sep="|", header=0, index_col=1, skipinitialspace=True)


def _read_markdown_2(text: str) -> DataFrame:
    import pandas

    header, *lines = text.strip().split("\n")
    rows = StringIO(header + "\n" + "\n".join(lines[1:]))
    return pandas.read_table(rows, sep="|", header=0, skipinitialspace=True).iloc[:, 1:-1]


def _table_within(text: str, form: str, truth: DataFrame) -> DataFrame | None:
    """The table in a text that begins with the truth's header (CSV, TSV), or of the lines with its columns (JSONL)."""
    if form in _SEPARATORS:
        return _from_header(text.strip().split("\n"), _SEPARATORS[form], truth)
    return _from_lines(text.strip().split("\n"), truth) if form == "jsonl" else None


def _holds_same(text: str, form: str, truth: DataFrame) -> bool:
    """Whether the text contains the table among other words. Upstream looks for it only in CSV and JSONL."""
    if form not in ("csv", "jsonl"):
        return False
    table = _table_within(text, form, truth)
    return table is not None and _is_same(table, truth)


def _from_header(lines: list[str], separator: str, truth: DataFrame) -> DataFrame | None:
    """The table read from the header on, dropping unreadable lines at the end; None without a header."""
    import pandas

    header = separator.join(truth.columns).strip()
    start = next((at for at, line in enumerate(lines) if line.strip() == header), len(lines))
    for end in range(len(lines), start, -1):
        try:
            return pandas.read_csv(StringIO("\n".join(lines[start:end])), sep=separator)
        except Exception:  # whatever pandas raises about a text
            continue
    return None


def _from_lines(lines: list[str], truth: DataFrame) -> DataFrame | None:
    """The table of the lines that are JSON objects and name every column; None without any."""
    import pandas

    rows = []
    for line in lines:
        if len(line) > 1 and line[0] == "{" and line[-1] == "}" and all(column in line for column in truth.columns):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return pandas.DataFrame(rows) if rows else None


def _is_same(table: DataFrame, truth: DataFrame) -> bool:
    """Whether both have the same columns, in any order, and rows; a column `index` is left out."""
    try:
        ours, theirs = _named(table), _named(truth)
        if len(ours) != len(theirs) or sorted(ours.columns) != sorted(theirs.columns):
            return False
        rows = ((ours.iloc[at], theirs.iloc[at]) for at in range(len(ours)))
        return all(_same_cell(a[name], b[name]) for a, b in rows for name in ours.columns)
    except Exception:  # from names that are not text or occur twice, and from cells that cannot be compared
        return False


def _named(table: DataFrame) -> DataFrame:
    table.columns = [name.strip() for name in table.columns]
    return table.drop(columns=["index"]) if "index" in table.columns else table


def _same_cell(a: object, b: object) -> bool:
    a, b = (cell.strip() if isinstance(cell, str) else cell for cell in (a, b))
    if not (_is_number(a) and _is_number(b)):
        return bool(a == b)
    try:
        ours, theirs = float(a), float(b)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(a).strip() == str(b).strip()
    return (math.isnan(ours) and math.isnan(theirs)) or abs(ours - theirs) < SAME


def _is_number(cell: object) -> bool:
    from pandas.api.types import is_numeric_dtype

    return not isinstance(cell, str) and (isinstance(cell, float) or is_numeric_dtype(cell))
