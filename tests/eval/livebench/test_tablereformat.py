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
    assert score(question, f"Sure!\n```{form}\n{TABLES[form]}\n```\nDone.") == 1
    assert score(question, TABLES[form].replace("Bob", "Rob")) == 0
    assert score(question, TABLES[form].replace("name", "nom")) == 0
    assert score(question, TABLES[form].replace("2", "2.5")) == 0
    assert score(question, TABLES[form][: len(TABLES[form]) // 2]) == 0
    assert score(question, "no table") == 0
    assert score(question, "") == 0


def test_tablereformat_knows_missing_cells() -> None:
    question = reformat("csv", "id,name\n1,\n2,Bob")
    assert score(question, "id,name\n1,\n2,Bob") == 1
    assert score(question, "id,name\n1,-\n2,Bob") == 0


def test_tablereformat_reads_more_from_2025_on() -> None:
    rows = '[{"id":1,"name":"Ann"},{"id":2,"name":"Bob"}]'
    assert score(reformat("json"), rows) == 0
    assert score(reformat("json", released="2025-04-25"), rows) == 1
    assert score(reformat("json", released="2025-04-25"), f"<solution>{TABLES['json']}</solution>") == 1


def test_a_prompt_that_asks_for_no_known_format_is_no_answers_fault() -> None:
    graded = grade_answer(live_question("tablereformat", "a", prompt="to XLS format"), "a")
    assert graded.value is None
    assert "the prompt requires xls; tables are read as csv" in graded.why
