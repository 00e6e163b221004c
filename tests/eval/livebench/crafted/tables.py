"""Questions of the tasks whose answers are tables, mappings and lists of records, and contents that resemble the true.

Of each question the contents end with a wrong one.
"""

from __future__ import annotations

import json
from typing import Any

from tests.eval.livebench.crafted.words import FIRST, Question

Records = list[dict[str, Any]]

VERSION_2 = "2025-04-25"
PEOPLE: Records = [
    {"id": 1, "name": "Ann", "score": 0.5, "note": "a, b"},
    {"id": 2, "name": "Bob", "score": 12.25, "note": None},
    {"id": 30, "name": "Çem & Co", "score": -3.0, "note": "x/y"},
]
TOWNS: Records = [{"town": "Ulm", "year": "1890", "index": 7}, {"town": "Bonn", "year": "n/a", "index": 8}]
YEARS: Records = [{"1990": 1, "2000": 2}, {"1990": 3, "2000": 4}]


def written(rows: Records, form: str) -> str:
    """The table in a format, as LiveBench's files have it."""
    names = list(rows[0])
    cells = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    match form:
        case "json":
            return json.dumps({str(7 * at + 4): row for at, row in enumerate(rows)}, ensure_ascii=False)
        case "jsonl":
            return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        case "html":
            lines = ["".join(f"<td>{cell.replace('&', '&amp;')}</td>" for cell in row) for row in cells]
            body = "".join(f"<tr>{line}</tr>" for line in lines)
            return (
                "<table><thead><tr>"
                + "".join(f"<th>{name}</th>" for name in names)
                + f"</tr></thead><tbody>{body}</tbody></table>"
            )
        case "markdown":
            bars = [" | ".join(line) for line in (names, [":---"] * len(names), *cells)]
            return "\n".join(f"| {line} |" for line in bars)
    between = "," if form == "csv" else "\t"
    quoted = [[f'"{cell}"' if between in cell else cell for cell in row] for row in cells]
    return "\n".join(between.join(line) for line in (names, *quoted)) + "\n"


def changed(rows: Records) -> list[Records]:
    """The table with other orders, cells, rows and columns."""
    names = list(rows[0])
    first, last = names[0], names[-1]

    def with_cell(value: object, name: str = first, at: int = 0) -> Records:
        return [{**row, name: value} if number == at else row for number, row in enumerate(rows)]

    renamed = [{("No." if name == first else name): value for name, value in row.items()} for row in rows]
    spaced = [{f" {name} ": value for name, value in row.items()} for row in rows]
    return [
        rows,
        [{name: row[name] for name in reversed(names)} for row in rows],
        rows[::-1],
        rows[:-1],
        [*rows, rows[0]],
        renamed,
        spaced,
        [{"index": at, **row} for at, row in enumerate(rows)],
        [{**row, "more": 1} for row in rows],
        [{k: v for k, v in row.items() if k != last} for row in rows],
        with_cell(1.0),
        with_cell(1.0000001),
        with_cell(1.001),
        with_cell(" 1 "),
        with_cell("one"),
        with_cell(None),
        with_cell(True),
        with_cell("Ulm "),
        with_cell("nan", last, -1),
        with_cell("x", last, 1),
        with_cell("2024-01-05"),
        with_cell(10**20),
    ]


def _reformat(rows: Records, form: str, released: str) -> Question:
    prompt = f"Please convert the Input Table from XML format to {form.upper()} format. Answer with the table only."
    if released >= VERSION_2:
        prompt = f"Convert this.\nSource Format: XML\nTarget Format: {form.upper()}\n\nInput Table: <a/>"
    right = written(rows, form)
    contents = [written(one, form) for one in changed(rows)]
    contents += [written(rows, other) for other in ("csv", "tsv", "json", "jsonl", "html", "markdown") if other != form]
    contents += [
        json.dumps(rows),
        json.dumps(rows, indent=1),
        json.dumps({"data": rows}),
        right.replace(" ", ""),
        right.upper(),
    ]
    contents += [
        right.replace("\n", "\n\n"),
        right.replace("| ", "|"),
        right.replace(":---", "---:"),
        right.replace(":---", "-"),
        right + "\n" + right,
    ]
    contents.append("a,b\n1,2")
    special = [
        f"Here is the table in {form.upper()} format:\n\n{right}\n\nI hope this helps!",
        f"{right}\n\nLet me know, if you need more.",
        f"{right}\nThis table, as asked, has {len(rows)} rows, and columns, and so on, and on",
        f"Sure!\n```{form}\n{right}\n```\nDone.",
        f"```{form}\n{right}",
        f"{right}\n```",
        f"<solution>\n```{form}\n{right}\n```\n</solution>",
        f"<solution>{right}</solution>",
        f"<solution>x</solution><solution>\n{right}\n</solution>",
        f"Input table: x\n```json\n{right}\n```",
        f"```html\n{right}\n```",
        f"Here you are:\n{right}",
        f"here is the new format ) {right}",
        right.replace("&", "&amp;"),
        f"x\n{right}",
        right.replace("\n", "\r\n"),
        '"' + right,
        right[: len(right) // 2],
        "{",
        "[]",
        "<table></table>",
        "null",
        "no table",
    ]
    return {"truth": right, "prompt": prompt, "released": released}, contents, special


def _join(truth: dict[str, Any]) -> Question:
    first, *_, last = truth
    found: list[dict[Any, Any]] = [
        truth,
        {**truth, "extra": None},
        {**truth, "extra": "x"},
        {**truth, first: "wrong"},
        {k: v for k, v in truth.items() if k != last},
        {v: k for k, v in truth.items()},
        {**truth, first: None},
        {**truth, first: ""},
        {**truth, first: [truth[first]]},
        {"x": "y"},
        {first: truth[first]},
        {**truth, 1: 2},
        {f" {k}": v for k, v in truth.items()},
        {k: v.upper() for k, v in truth.items()},
        {"x": 0, **truth},
    ]
    contents = [text for one in found for text in (json.dumps(one), repr(one), json.dumps(one, indent=2))]
    contents += [
        str(list(truth.items())),
        f"dict({truth})",
        ", ".join(f"{k}: {v}" for k, v in truth.items()),
        "{}",
        json.dumps({"a": 1, "b": "c"}),
    ]
    right = json.dumps(truth)
    special = [
        f"{right}\nThis maps the columns.",
        f"The mapping is {right}.",
        f"```python\nmapping = {right}\n```",
        f"```json\n{right}\n```\nas {{asked}}",
        f"```\n{right}\n```",
        f"```json\n{right}\n``` or ```json\n{{}}\n```",
        f"```python\n{{}}\n```\n```json\n{right}\n```",
        f"```javascript\n{right}\n```",
        f"\\boxed{{{right}}}",
        f"\\boxed{right}",
        "\\boxed{" + str({f"\\text{{'{k}'}}": v for k, v in truth.items()}) + "}",
        f"<solution>\n{right}\n</solution>",
        f"<solution>```json\n{right}\n```</solution>",
        f"<Solution>{right}</Solution>",
        f"<solution>{{}}</solution><solution>{right}</solution>",
        "{'name': '\\e'}",
        "[" * 5000,
        "-" * 90000 + "1",
        "{1: 2, [3]: 4}",
        f"{right}}}",
        right.replace('"', "“"),
    ]
    return {"truth": json.dumps(truth), "released": FIRST}, contents, special


VALUE = "max_consecutive_growth_months"


def _events(truth: Records, *, is_text: bool) -> Question:
    def with_values(change: Any) -> Records:
        return [{**row, VALUE: change(row[VALUE])} for row in truth]

    found: list[Any] = [
        truth,
        truth[::-1],
        truth[1:],
        [*truth, {"user_id": "u77", VALUE: 3}],
        [*truth, truth[0]],
        with_values(lambda value: value + 1),
        with_values(float),
        with_values(str),
        with_values(lambda _: None),
        [{**row, "extra": 1} for row in truth],
        [{**row, "user_id": str(row["user_id"])} for row in truth],
        [{"user_id": row["user_id"]} for row in truth],
        [{VALUE: row[VALUE]} for row in truth],
        [*truth, {"user": 1}, 5, "x", None],
        [{"user_id": [1], VALUE: 2}],
        [[row["user_id"], row[VALUE]] for row in truth],
        {"data": truth},
        {"user_id": truth[0]["user_id"], VALUE: 1},
        {row["user_id"]: row[VALUE] for row in truth},
        [],
        None,
        3,
        "text",
        True,
        [{"user_id": row["user_id"], "months": row[VALUE]} for row in truth],
        [{"user_id": truth[0]["user_id"], VALUE: 99}, *truth],
        [*truth, {"user_id": truth[0]["user_id"], VALUE: 99}],
        [{"user_id": "u9", VALUE: 1}],
    ]
    contents = [text for one in found for text in (json.dumps(one), json.dumps(one, indent=1))]
    right = json.dumps(truth)
    special = [f"<solution>{text}</solution>" for text in contents] + [
        f"<SOLUTION>\n{text}\n</SOLUTION>" for text in contents[::2]
    ]
    special += [
        f"<solution>```json\n{right}\n```</solution>",
        f"<solution>{right},</solution>",
        f"<solution>{truth}</solution>",
        f"<solution>{right}",
        "<solution>" + right.replace("[", "", 1) + "</solution>",
        "<solution>[" + "9" * 5000 + "]</solution>",
        f"<solution>[{right}]</solution>",
    ]
    return {"truth": right if is_text else truth, "released": "2026-01-08"}, contents, special


QUESTIONS: dict[str, list[Question]] = {
    "tablereformat": [
        _reformat(PEOPLE, form, released)
        for released in (FIRST, VERSION_2)
        for form in ("csv", "tsv", "json", "jsonl", "html", "markdown")
    ]
    + [_reformat(TOWNS, form, FIRST) for form in ("csv", "json", "jsonl")]
    + [_reformat(YEARS, form, FIRST) for form in ("json", "csv")],
    "tablejoin": [
        _join({"name": "a1", "zip": "b2", "city": "c3"}),
        _join({"freq_2": "+xS/4", "Areas": "Yz4/h"}),
        _join({"a": "", "b": "x", "c": "y", "d": "z"}),
    ],
    "consecutive_events": [
        _events([{"user_id": 1, VALUE: 3}, {"user_id": 2, VALUE: 5}, {"user_id": 40, VALUE: 1}], is_text=False),
        _events([{"user_id": "u1", VALUE: 3}, {"user_id": "u2", VALUE: 5}], is_text=True),
    ],
}
