"""Data analysis tasks: right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from ktbench.eval.livebench.graders import grade_answer
from tests.eval.livebench.asked import asked, score

JOIN = '{"name": "a1", "zip": "b2", "city": "c3"}'
EVENTS = '[{"user_id": "u1", "value": 3}, {"user_id": "u2", "value": 5}]'
TABLES = {
    "csv": "id,name\n1,Ann\n2,Bob\n",
    "tsv": "id\tname\n1\tAnn\n2\tBob\n",
    "json": '{"7":{"id":1,"name":"Ann"},"4":{"id":2,"name":"Bob"}}',
    "jsonl": '{"id":1,"name":"Ann"}\n{"id":2,"name":"Bob"}',
    "html": "<table><tr><th>id<th>name</tr><tr><td>1<td>Ann</tr><tr><td>2<td>Bob</tr></table>",
    "markdown": "| id | name |\n|---:|:-----|\n| 1 | Ann |\n| 2 | Bob |",
}


@pytest.mark.parametrize(
    ("truth", "answer", "worth"),
    [
        ("Country.of.Origin", "Country.of.Origin", 1),
        ("Country.of.Origin", " `country of origin` ", 1),
        ("mass (g)", r"\boxed{\text{mass (g)}}", 1),
        ("id", "The class is: id", 1),
        ("id", "id, since these are numbers", 0),
        ("id", r"\boxed{year} id", 0),
        ("id", "", 0),
    ],
)
def test_cta(truth: str, answer: str, worth: float) -> None:
    assert score(asked("cta", truth), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        (JOIN, 1),
        ("{'name': 'a1', 'zip': 'b2', 'city': 'c3', 'street': None}", 1),
        ("{'name': 'a1', 'zip': 'b2', 'city': 'c3', 'street': null}", 1),
        (f"First {{'x': 'y'}}, but then\n```json\n{JOIN}\n```\nso {{it}} is.", 1),
        ('{"name": "a1"}', 0.5),
        ('{"name": "a1", "zip": "b2", "city": "b2"}', 0.67),
        ('{"name": "a1", "zip": "b2", "city": "c3", "street": "d4"}', 0.86),
        ('{"a1": "name", "b2": "zip", "c3": "city"}', 0),
        ("{}", 0),
        ("name: a1, zip: b2, city: c3", 0),
        (r"{'name': '\e'}", 0),
        ("", 0),
    ],
)
def test_tablejoin_is_an_f1(answer: str, worth: float) -> None:
    assert score(asked("tablejoin", JOIN), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        (f"<solution>{EVENTS}</solution>", 1),
        ('<solution>[{"user_id": "u1", "value": 3}]</solution>', 0.5),
        ('<solution>[{"user_id": "u1", "value": 3}, {"user_id": "u2", "value": 4}]</solution>', 0.3333),
        ('<solution>[{"user_id": "u9", "value": 3}]</solution>', 0),
        ("<solution>none</solution>", 0),
        ("<solution>[3, 5]</solution>", 0),
        (EVENTS, 0),
        ("", 0),
    ],
)
def test_consecutive_events_is_a_jaccard_index(answer: str, worth: float) -> None:
    assert score(asked("consecutive_events", EVENTS), answer) == worth


def reformat(form: str, truth: str = "", released: str = "2024-06-24"):  # type: ignore[no-untyped-def]
    prompt = f"Please convert the Input Table from XML format to {form.upper()} format."
    return asked("tablereformat", truth or TABLES[form], prompt=prompt, released=released)


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


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("name,id\nAnn,1\nBob,2", 1),
        ("id,name\n1.0000001, Ann \n2,Bob", 1),
        ("id,name\n2,Bob\n1,Ann", 0),
        ("id,name\n1,Ann\n2,Bob\n3,Cem", 0),
        ("id,name,age\n1,Ann,\n2,Bob,", 0),
        ("id,name\n1,\n2,Bob", 0),
    ],
)
def test_tablereformat_compares_rows_in_order_and_columns_in_any(answer: str, worth: float) -> None:
    assert score(reformat("csv"), answer) == worth


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
    graded = grade_answer(asked("tablereformat", "a", prompt="to XLS format"), "a")
    assert graded.value is None
    assert "the prompt requires xls; tables are read as csv" in graded.why
