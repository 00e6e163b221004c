"""Tables in every format: right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from ktbench.eval.livebench.graders import grade_answer
from tests.eval.livebench.questions import live_question, score

TABLES = {
    "csv": "id,name\n1,Ann\n2,Bob\n",
    "tsv": "id\tname\n1\tAnn\n2\tBob\n",
    "json": '{"7":{"id":1,"name":"Ann"},"4":{"id":2,"name":"Bob"}}',
    "jsonl": '{"id":1,"name":"Ann"}\n{"id":2,"name":"Bob"}',
    "html": "<table><tr><th>id<th>name</tr><tr><td>1<td>Ann</tr><tr><td>2<td>Bob</tr></table>",
    "markdown": "| id | name |\n|---:|:-----|\n| 1 | Ann |\n| 2 | Bob |",
}


def reformat(form: str, truth: str = "", released: str = "2024-06-24"):  # type: ignore[no-untyped-def]
    prompt = f"Please convert the Input Table from XML format to {form.upper()} format."
    return live_question("tablereformat", truth or TABLES[form], prompt=prompt, released=released)


@pytest.mark.parametrize("form", TABLES)
def test_tablereformat_in_every_format(form: str) -> None:
    question = reformat(form)
    assert score(question, TABLES[form]) == 1
    assert score(question, f"```{form}\n{TABLES[form]}\n```") == 1
    assert score(question, f"Here is the table:\n\n{TABLES[form]}") == 1
    assert score(question, f"<solution>\n{TABLES[form]}\n</solution>") == 1
    assert score(question, TABLES[form].replace("Bob", "Rob")) == 0
    assert score(question, TABLES[form].replace("name", "nom")) == 0
    assert score(question, TABLES[form].replace("2", "2.5")) == (form == "markdown")  # whose first column is no cell
    assert score(question, TABLES[form][: len(TABLES[form]) // 2]) == 0
    assert score(question, "no table") == 0
    assert score(question, "") == 0


def test_tablereformat_knows_missing_cells() -> None:
    question = reformat("csv", "id,name\n1,\n2,Bob")
    assert score(question, "id,name\n1,\n2,Bob") == 1
    assert score(question, "id,name\n1,-\n2,Bob") == 0


@pytest.mark.parametrize(
    ("form", "answer", "worth"),
    [
        ("json", f"Sure!\n```json\n{TABLES['json']}\n```\nDone.", 1),
        ("json", '[{"id":1,"name":"Ann"},{"id":2,"name":"Bob"}]', 1),
        ("json", TABLES["jsonl"], 1),
        ("jsonl", f"Sure!\n{TABLES['jsonl']}\nDone, as you see.", 1),
        ("csv", f"Sure!\n```csv\n{TABLES['csv']}```", 1),
        ("csv", f"Sure!\n{TABLES['csv']}\nSo many, oh, so many rows", 1),
        ("csv", f"Sure!\n{TABLES['csv']}\nDone.", 0),  # a third row
        ("csv", "index,id,name\n0,1,Ann\n1,2,Bob", 1),
        ("tsv", f"Sure!\n{TABLES['tsv']}", 0),  # of TSV no table is looked for where pandas reads one
        ("html", f"Sure!\n{TABLES['html']}\nDone.", 1),
        ("markdown", TABLES["markdown"].replace("---:", "---"), 1),
        ("markdown", TABLES["markdown"].replace(":-----", "-----"), 0),  # the line below the header is a row
        ("csv", '"' + TABLES["csv"], 0),
    ],
)
def test_a_table_may_stand_among_words(form: str, answer: str, worth: int) -> None:
    assert score(reformat(form), answer) == worth


def test_version_2_reads_otherwise() -> None:
    later = "2025-04-25"
    prompt = "Source Format: XML\nTarget Format: {}"
    markdown = live_question("tablereformat", TABLES["markdown"], prompt=prompt.format("Markdown"), released=later)
    assert score(markdown, TABLES["markdown"].replace(":-----", "-----")) == 1
    assert score(markdown, TABLES["markdown"].replace("2", "2.5")) == 0
    rows = live_question("tablereformat", TABLES["json"], prompt=prompt.format("JSON"), released=later)
    assert score(rows, '[{"id":1,"name":"Ann"},{"id":2,"name":"Bob"}]') == 1
    assert score(rows, TABLES["jsonl"]) == 0


def test_a_prompt_that_asks_for_no_known_format_is_no_answers_fault() -> None:
    graded = grade_answer(live_question("tablereformat", "a", prompt="to XLS format"), "a")
    assert graded.value is None
    assert "the prompt requires xls; tables are read as csv" in graded.why
