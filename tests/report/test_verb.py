from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.report.write import write_report
from tests.drawing import few_of
from tests.report.synthetic import Store
from tests.report.test_golden import KERNELS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs below `runs/`, the second one younger."""
    for age, name in enumerate(("older", "newer")):
        log = Store(run=name, rounds=6, steps=1).write(tmp_path / "runs").folder / "log.jsonl"
        os.utime(log, (1e9 + age, 1e9 + age))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("name", few_of(["newer", "latest", "runs/newer"], {"latest"}))
def test_rebuilds_the_report_and_prints_the_table(home: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["report", name]) == 0
    out = capsys.readouterr().out
    report = home / "newer" / "report"
    assert out.startswith((report / "table.md").read_text())
    suffixes = ["table.md", "table.csv", "table.json", "table.tex", "figure.pdf", "figure.svg", "figure.png"]
    suffixes += ["page.html"]
    assert out.splitlines()[-8:] == [f"wrote runs/newer/report/{suffix}" for suffix in suffixes]
    before = {path: path.read_bytes() for path in report.iterdir()}
    assert main(["report", name]) == 0
    assert {path: path.read_bytes() for path in report.iterdir()} == before


def test_writes_only_what_is_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "older", "csv", "tex", "csv"]) == 0
    assert sorted(path.name for path in (home / "older" / "report").iterdir()) == ["table.csv", "table.tex"]
    assert capsys.readouterr().out.startswith("# Decode breakdown\n")


@pytest.mark.parametrize("kind", ["csv", "json", "tex", "md"])
def test_one_format_of_text_is_all_that_is_printed(home: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert main(["report", "newer", kind]) == 0
    out, err = capsys.readouterr()
    assert out == (home / "newer" / "report" / f"table.{kind}").read_text()
    assert err == f"wrote runs/newer/report/table.{kind}\n"


def test_json_lines_hold_each_row_and_the_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "newer", "csv", "--json"]) == 0
    *rows, run = map(json.loads, capsys.readouterr().out.splitlines())
    with (home / "newer" / "report" / "table.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [line["label"] for line in written]
    assert {row["line"] for row in rows} == {"row"}
    assert [row["step_s"] for row in rows] == [float(line["step_s"]) if line["step_s"] else None for line in written]
    assert run == {"line": "run", "run": "newer", "title": "Decode breakdown", "files": ["runs/newer/report/table.csv"]}


def test_csv_of_several_parts_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = KERNELS.write(tmp_path)
    assert main(["report", str(log.folder), "csv"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(lines) == len(log.header.cells)
    assert {line["part"] for line in lines} == {part.name for part in log.header.parts}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "report: name a run"),
        (["newr"], "newr: no such run, did you mean newer?"),
        (["newer", "kit", "width=0.2"], "report width=0.2: from 2.5 to 20"),
        (["newer", "kit", "width=wide"], "report width: expected"),
        (["newer", "kit", "height=0.8", "size=20"], "no room for its plots"),
        (["newer", "kit", "font=Sanserif"], "font=Sanserif: not installed"),
        (["newer", "kit", "colour=blue"], "report colour=: no such setting, allowed are width, height, font"),
        (
            ["newer", "doc"],
            "format 'doc': unknown; allowed are md, csv, json, tex, figure, html, lm_eval, kit, llama_bench, samples",
        ),
    ],
)
def test_bad_requests_end_with_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["report", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err and err.count("\n") == 1
    assert not (home / "newer" / "report").exists()


def test_a_run_that_was_killed_before_its_plan_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "newer" / "log.jsonl").write_bytes(b'{"schema":1,"kind":"hea')
    assert main(["report", "newer"]) == 2
    assert "killed before its plan was written" in capsys.readouterr().err


def test_half_a_line_at_the_end_changes_nothing(tmp_path: Path) -> None:
    run = Store(rounds=6, steps=1).write(tmp_path)
    before = [path.read_bytes() for path in write_report(run, ["md", "json"])]
    with (run.folder / "log.jsonl").open("ab") as log:
        log.write(b'{"schema":1,"kind":"record","crc":12,"bo')
    assert [path.read_bytes() for path in write_report(run, ["md", "json"])] == before
