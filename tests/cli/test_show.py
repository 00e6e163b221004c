"""What a finished run prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli.show import show
from ktbench.report.conditions import UNPROVEN as UNPROVEN_NOTE
from tests.report.peer_stores import PEERS, UNPROVEN
from tests.report.role_stores import DEFERRAL, LADDER
from tests.report.synthetic import Arm, Store


def test_remarks_of_a_system_stand_below_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = (LADDER[0], LADDER[-1])
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
    assert show(Store(arms=arms, rounds=6).write(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("llama.cpp"))
    assert lines[row + 1].strip() == PEERS[2].notes[0]
    assert "the experts' outputs cannot be observed" in lines[row + 2] and said in lines[row + 2]
    assert ("†" in lines[row]) == (said == UNPROVEN_NOTE)
