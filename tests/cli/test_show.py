"""What a finished run prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli.show import show
from ktbench.cli.streams import printing
from ktbench.report.conditions import UNPROVEN as UNPROVEN_NOTE
from ktbench.results.rows import rows_of
from tests.report.peer_stores import PEERS, UNPROVEN
from tests.report.role_stores import DEFERRAL, LADDER
from tests.report.synthetic import Arm, Store


def test_remarks_of_a_system_stand_below_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = (LADDER[0], LADDER[-1])
    with printing(verbose=True):
        assert show(replace(DEFERRAL, arms=arms).write(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("+v+d+l deferral=auto"))
    assert lines[row + 1].strip() == LADDER[-1].notes[0]


@pytest.mark.parametrize(
    ("arms", "said"), [(PEERS, "top-1 87.5% and KL 0.041 nats against"), (UNPROVEN, UNPROVEN_NOTE)]
)
def test_a_peers_row_says_what_shows_that_it_gives_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arms: tuple[Arm, ...], said: str
) -> None:
    with printing(verbose=True):
        assert show(Store(arms=arms, rounds=6).write(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("llama.cpp"))
    assert lines[row + 1].strip() == PEERS[2].notes[0]
    assert "the experts' outputs cannot be observed" in lines[row + 2] and said in lines[row + 2]
    assert ("†" in lines[row]) == (said == UNPROVEN_NOTE)


def test_a_run_is_a_line_a_row_a_result_and_one_place_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Store().write(tmp_path)
    assert show(run) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = lines[2 : lines.index("", 2)]
    assert all(line.startswith(cell.label) for line, cell in zip(rows, run.header.cells, strict=True))
    assert not any("12 rounds" in line for line in rows)  # what all rows share is said once
    assert "Rounds: 12." in lines
    assert lines[-1].startswith(f"report: {run.folder / 'report' / 'page.html'}")
    assert not any(line.startswith("wrote") for line in lines)
    assert any(line.startswith("+v") and "the speed of base" in line for line in lines[-4:])


def test_rows_are_formed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formed = []
    monkeypatch.setattr("ktbench.report.documents.rows_of", lambda run: formed.append(run) or rows_of(run))
    for module in ("ktbench.report.write", "ktbench.api.frames"):
        monkeypatch.setattr(f"{module}.rows_of", lambda run: pytest.fail("rows are formed again"))
    show(Store().write(tmp_path))
    assert len(formed) == 1
