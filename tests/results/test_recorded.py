"""Runs kept from real hardware stay readable, and their numbers stay what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.resources import data_folder
from ktbench.results import read_run
from ktbench.results.rows import rows_of
from ktbench.spec.record import Provenance

RUNS = sorted(log.parent for log in data_folder("reports").glob("recorded/*/*/log.jsonl"))
MEASURED: Provenance = "measured"


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_planned_cell_has_a_speed_or_a_reason(folder: Path) -> None:
    for row in rows_of(read_run(folder)):
        assert row.provenance == MEASURED
        assert row.timed or row.why


def test_the_speed_ups_that_the_readme_shows() -> None:
    (decode,) = (folder for folder in RUNS if folder.name == "decode")
    shown = {row.label: row.speedup.mid for row in rows_of(read_run(decode)) if row.speedup}
    readme = (data_folder("reports").parent / "README.md").read_text()
    for label in ("+v", "+m", "+v+d"):
        assert f"{shown[label]:.3f}x" in readme
