"""LiveBench's rules for tables, mappings and lists of records: row, answer → score."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import StringIO
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from tests.eval.livebench.rules.boxes import any_tags, box

Row = Mapping[str, Any]


def inner_solution(text: str) -> str:
    """The last solution, of which again the last; on several lines, in lower case."""
    found = re.findall("(?s)<solution>(.*?)</solution>", text)
    return inner_solution(found[-1].strip()) if found else text


def mapping(text: str) -> dict[Any, Any]:
    text = inner_solution(text)
    try:
        value = ast.literal_eval(text)
    except Exception:
        candidates: list[str] = []
        for opening in ("```python", "```json", "```"):
            candidates = candidates or re.findall(opening + "(.*?)```", text.replace("\n", ""))
        if not candidates and "\\boxed" in text:
            inside = box(text.replace("\n", ""))
            if inside is not None:
                candidates = [re.sub(r"\\text\{['|\"](.*?)['|\"]\}", r"'\1'", inside).replace("\\", "")]
        try:
            value = ast.literal_eval((candidates or [text])[-1].replace("null", "None"))
        except Exception:
            return {}
    if not isinstance(value, dict):
        return {}
    return {key: value[key] for key in value if value[key] is not None}


def tablejoin(row: Row, answer: str) -> float:
    truth = ast.literal_eval(row["truth"]) if isinstance(row["truth"], str) else row["truth"]
    given = mapping(answer)
    if not given:
        return 0.0
    hits = false = missed = 0
    for key, value in given.items():
        want = truth.get(key)
        if want and want == value:
            hits += 1
        else:
            false += 1
            missed += bool(want)
    for key in truth:
        missed += not given.get(key)
    import numpy as np

    return float(np.round(2 * hits / (2 * hits + false + missed), 2))


VALUE = "max_consecutive_growth_months"


def consecutive_events(row: Row, answer: str) -> float:
    truth = json.loads(row["truth"]) if isinstance(row["truth"], str) else row["truth"]
    found = any_tags(answer)
    if not found:
        return 0.0
    try:
        given = json.loads(found[-1].strip())
    except json.JSONDecodeError:
        return 0.0
    if not given:
        return 0.0 if truth or given is None else 1.0
    want = {one["user_id"]: one[VALUE] for one in truth}
    got = {}
    for one in given:
        if isinstance(one, dict) and "user_id" in one:
            got[one["user_id"]] = one.get(VALUE)
    hits = [user for user in want if user in got and got[user] == want[user]]
    false = [user for user in got if user not in want or got[user] != want[user]]
    missed = [user for user in want if user not in got or got[user] != want[user]]
    return round(len(hits) / (len(hits) + len(false) + len(missed)), 4)


def reader(form: str, version: int) -> Callable[[str], Any]:
    """How pandas is asked to read a format; of JSON the first way that works."""
    if form in ("csv", "tsv"):
        return lambda text: pd.read_csv(StringIO(text), sep={"csv": ",", "tsv": "\t"}[form])
    if form == "jsonl":
        return lambda text: pd.read_json(StringIO(text), orient="records", lines=True)
    if form == "html":
        return lambda text: pd.concat(pd.read_html(StringIO(text), flavor="lxml"), axis=0)
    if form == "markdown":
        return markdown_1 if version == 1 else markdown_2
    return json_1 if version == 1 else json_2


def first_that_works(*ways: Callable[[], Any]) -> Any:
    for way in ways[:-1]:
        try:
            return way()
        except Exception:
            pass
    return ways[-1]()


def json_1(text: str) -> Any:
    return first_that_works(
        lambda: pd.read_json(StringIO(text), orient="index"),
        lambda: pd.read_json(StringIO(text), orient="records"),
        lambda: pd.read_json(StringIO(text), orient="records", lines=True),
        lambda: pd.read_json(StringIO(text), orient="table"),
        lambda: pd.read_json(StringIO(text), orient="values"),
    )


def json_2(text: str) -> Any:
    return first_that_works(
        lambda: pd.read_json(StringIO(text), orient="table"),
        lambda: pd.read_json(StringIO(text), orient="index"),
        lambda: pd.read_json(StringIO(text), orient="records"),
        lambda: None,
    )


def markdown_1(text: str) -> Any:
    return pd.read_table(StringIO(text), sep="|", header=0, index_col=1, skipinitialspace=True)


def markdown_2(text: str) -> Any:
    lines = text.strip().split("\n")
    kept = "\n".join([lines[0], *lines[2:]])
    return pd.read_table(StringIO(kept), sep="|", header=0, skipinitialspace=True).iloc[:, 1:-1]


def cleaned(text: str) -> str:
    text = inner_solution(text)
    for language in ("json", "html"):
        if found := re.findall(f"(?s)```{language}\n(.*?)```", text):
            return found[-1].strip()
    if text.startswith("```") and "\n" in text:
        text = text[text.index("\n") + 1 :]
    return text.replace("&amp;", "&").replace("```", "").strip()


def without_introduction(text: str) -> str:
    return re.sub(r"(?i)^\s*(here|input)\b.*?\b(format|table)\s*[:)]\s*", "", text).strip()


def rows_from_header(text: str, header: str, separator: str) -> Any:
    lines = text.strip().split("\n")
    begins = [number for number, line in enumerate(lines) if line.strip() == header.strip()]
    if not begins:
        return None
    lines = lines[begins[0] :]
    while lines:  # where LiveBench would try for ever
        try:
            return pd.read_csv(StringIO("\n".join(lines)), sep=separator)
        except Exception:
            lines.pop()
    return None


def rows_by_line(text: str, columns: Any) -> Any:
    rows = []
    for line in text.strip().split("\n"):
        if len(line) >= 2 and line[0] + line[-1] == "{}" and not [name for name in columns if name not in line]:
            with suppress(ValueError):
                rows.append(json.loads(line))
    return pd.DataFrame(rows) if rows else None


def tablereformat(row: Row, answer: str) -> float:
    version = 2 if row["released"] >= "2025-04-25" else 1
    if version == 1:
        form = row["prompt"].split("format to ")[1].split(" format")[0].lower()
    else:
        form = (
            [line for line in row["prompt"].split("\n") if "Target Format" in line][-1].split(": ")[1].strip().lower()
        )
    read = reader(form, version)
    truth, text = read(row["truth"]), without_introduction(cleaned(answer))
    try:
        given = read(text)
    except Exception:
        given = None
        if form in ("csv", "tsv"):
            separator = "," if form == "csv" else "\t"
            given = rows_from_header(text, separator.join(truth.columns), separator)
        if form == "jsonl":
            given = rows_by_line(text, truth.columns)
        if given is None:
            return 0.0
    if is_same(given, truth):
        return 1.0
    if form == "csv":
        given = rows_from_header(text, ",".join(truth.columns), ",")
    if form == "jsonl":
        given = rows_by_line(text, truth.columns)
    return float(given is not None and is_same(given, truth))


def is_same(given: Any, truth: Any) -> bool:
    try:
        for table in (truth, given):
            table.columns = [name.strip() for name in table.columns]
        truth, given = (table.drop(columns=["index"], errors="ignore") for table in (truth, given))
        if len(given) != len(truth) or sorted(given.columns) != sorted(truth.columns):
            return False
        for number in range(len(truth)):
            for name in given.columns:
                if not same_cell(given.iloc[number][name], truth.iloc[number][name]):
                    return False
    except Exception:
        return False
    return True


def same_cell(given: Any, want: Any) -> bool:
    given, want = (cell.strip() if isinstance(cell, str) else cell for cell in (given, want))
    if isinstance(given, str) or isinstance(want, str):
        return bool(given == want)
    if all(isinstance(cell, float) or is_numeric_dtype(cell) for cell in (given, want)):
        try:
            given, want = float(given), float(want)
        except Exception:
            return str(given).strip() == str(want).strip()
        return (math.isnan(given) and math.isnan(want)) or abs(given - want) < 1e-6
    return bool(given == want)
