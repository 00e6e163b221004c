"""The folder to drop into a paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from PIL import Image

from ktbench.report.documents import documents_of, titles_of
from ktbench.report.latex import escaped
from ktbench.report.speed_table import table_of
from ktbench.report.write import write_report
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of
from tests.report.accuracy_stores import BASE, FOUR, AnswerStore, deferring
from tests.report.html.runs import DECODE
from tests.report.layers import LayerPart, LayerStore


def test_the_kit_inputs_what_it_holds_and_says_where_numbers_are_from(tmp_path: Path) -> None:
    run = replace(DECODE, rounds=6, steps=1).write(tmp_path)
    written = write_report(run, ["kit"])
    folder = run.folder / "report" / "kit"
    assert {path.parent for path in written} == {folder}
    kit = (folder / "kit.tex").read_text()
    for name in re.findall(r"\\input\{\\ktbench/(\w+)\}", kit):
        assert (folder / f"{name}.tex").is_file()
    for name in re.findall(r"\{\\ktbench/([\w.]+)\}", kit.replace("\\input", "")):
        assert (folder / name).is_file() or (folder / f"{name}.tex").is_file()
    assert (
        "Numbers: measured. Intervals hold the median over 6 comparable rounds with at least 95\\%. Run decode" in kit
    )
    assert r"\begin{figure" not in (folder / "table.tex").read_text()
    assert r"\input{kit}" in (folder / "main.tex").read_text()
    assert all(path.read_text().isascii() for path in folder.glob("*.tex"))


def test_a_paper_has_room_for_key_columns_and_the_conditions_stand_apart(tmp_path: Path) -> None:
    run = replace(DECODE, rounds=6, steps=1).write(tmp_path)
    write_report(run, ["kit", "tex", "figure"])
    folder = run.folder / "report" / "kit"
    heading = (folder / "table.tex").read_text().partition("\\toprule\n")[2].partition("\n")[0]
    assert heading.startswith("arm & outcome & time (ms/step) & speed of 4 of 48 layers (tokens/s) & speed-up")
    assert "evidence" not in heading and "evidence" in (folder.parent / "table.tex").read_text()
    conditions = (folder / "conditions.tex").read_text()
    assert "Workload: decode" in conditions and "python -m ktbench run" in conditions
    assert "Workload: decode" not in (folder / "kit.tex").read_text()
    kit, ours = size(folder / "figure.png"), size(folder.parent / "figure.png")
    assert kit[0] == ours[0] and kit[1] < ours[1]  # no caption inside the picture


def test_conditions_of_several_parts_are_said_of_all_or_below_the_name_of_their_part(tmp_path: Path) -> None:
    wide = LayerPart(name="wide", title="Four tokens", tokens=(4,))
    run = LayerStore(parts=(LayerPart(name="one", title="One token", tokens=(1,)), wide), rounds=6).write(tmp_path)
    write_report(run, ["kit"])
    text = (run.folder / "report" / "kit" / "conditions.tex").read_text()
    titles, paragraphs = zip(*re.findall(r"\\paragraph\{(.*?)\} (.*)", text), strict=True)
    assert titles == ("Conditions.", "One token.", "Four tokens.")
    common, *own = paragraphs
    assert "Machine: Intel" in common and "Software: " in common
    controls = [re.findall(r"Control \(base against itself\)[^:]*: [^;,.]*", one) for one in paragraphs]
    assert not controls[0] and all(controls[1:])
    first, second = (table_of(one, rows_of(one)) for one in parts_of(run))
    for table, other, mine in ((first, second, own[0]), (second, first, own[1])):
        apart = [*{*table.conditions, *table.methods} - {*other.conditions, *other.methods}]
        assert apart and all(escaped(said) in mine for said in apart)


def test_documents_of_one_part_are_told_apart_in_the_conditions(tmp_path: Path) -> None:
    run = AnswerStore(arms=(BASE, deferring(2)), suite=FOUR, questions=4, timed=2).write(tmp_path)
    assert titles_of(documents_of(run)) == (f"{run.header.title}: answers", f"{run.header.title}: speed")
    write_report(run, ["kit"])
    text = (run.folder / "report" / "kit" / "conditions.tex").read_text()
    assert all(f"\\paragraph{{{title}.}}" in text for title in titles_of(documents_of(run)))


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def test_the_kit_is_written_on_request_alone(tmp_path: Path) -> None:
    run = replace(DECODE, rounds=2, steps=1).write(tmp_path)
    write_report(run, ["tex", "csv"])
    assert not (run.folder / "report" / "kit").exists()
