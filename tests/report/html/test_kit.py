"""The folder to drop into a paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ktbench.report.write import write_report
from tests.report.html.runs import DECODE


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
    assert "Numbers: measured. Intervals hold the median over 6 rounds with at least 95\\%. Run decode" in kit
    assert r"\begin{figure}" not in (folder / "table.tex").read_text()
    assert r"\input{kit}" in (folder / "main.tex").read_text()


def test_the_kit_is_written_on_request_alone(tmp_path: Path) -> None:
    run = replace(DECODE, rounds=2, steps=1).write(tmp_path)
    write_report(run, ["tex", "csv"])
    assert not (run.folder / "report" / "kit").exists()
