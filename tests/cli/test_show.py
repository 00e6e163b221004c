"""What a finished run prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli.show import show
from tests.report.role_stores import DEFERRAL, LADDER


def test_remarks_of_a_system_stand_below_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = (LADDER[0], LADDER[-1])
    assert show(replace(DEFERRAL, arms=arms).write(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("+v+d+l deferral=auto"))
    assert lines[row + 1].strip() == LADDER[-1].notes[0]
