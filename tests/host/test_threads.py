"""Threads that keep a core busy are told from those that rest, spin for a while, or have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.host.threads import busy_threads


class Tasks:
    """Threads of which each runs for so many milliseconds of every window, in turn; the last number stays."""

    def __init__(self, folder: Path, *runs: list[int]) -> None:
        self.folder, self._runs, self._at = folder, runs, [0] * len(runs)
        self._write()

    def rest(self, _seconds: float) -> None:
        for i, run in enumerate(self._runs):
            self._at[i] += 1_000_000 * (run.pop(0) if len(run) > 1 else run[0])
        self._write()

    def _write(self) -> None:
        for i, ns in enumerate(self._at):
            (self.folder / str(i)).mkdir(exist_ok=True)
            (self.folder / str(i) / "schedstat").write_text(f"{ns} 0 1\n")


@pytest.mark.parametrize(
    ("runs", "busy"),
    [
        ([[0], [2]], 0),
        ([[20]], 1),
        ([[20], [20], [1]], 2),
        ([[20, 20, 20, 0]], 0),
        ([[20, 0], [0, 20]], 1),
        ([[7], [7], [6]], 3),
        ([[3], [4]], 0),
    ],
    ids=["at rest", "one", "two", "spinning for a while", "in turns", "on one core", "little"],
)
def test_busy_threads(tmp_path: Path, runs: list[list[int]], busy: int) -> None:
    tasks = Tasks(tmp_path, *runs)
    assert busy_threads(tasks.rest, tmp_path) == busy


def test_a_kernel_that_does_not_count_shows_none(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    assert busy_threads(lambda seconds: None, tmp_path) == 0
