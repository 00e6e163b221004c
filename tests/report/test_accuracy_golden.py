"""The report of answers is a function of the store: Markdown and LaTeX of three stores, byte for byte.

After a wanted change: `python -m tests.report.test_accuracy_golden` writes them anew; read the difference before
keeping it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ktbench.report.write import write_report
from ktbench.spec.record import Outcome
from tests.report.accuracy_stores import BASE, FRONTIER, AnswerStore, DriftStore, deferring, skipping

GOLDEN = Path(__file__).parent / "golden"
LACKING = replace(BASE, label="+v+d+n", ends={"": (Outcome.UNSUPPORTED, "+n: one NUMA node")})
CRASHED = replace(BASE, label="+v+d deferral=8", ends={"reasoning_2": (Outcome.CRASHED, "the worker died: signal 9")})
STORES: dict[str, AnswerStore] = {
    "answers": AnswerStore(arms=(BASE, deferring(2), deferring(6), CRASHED, skipping(6), LACKING), questions=30),
    "answers_timed": replace(FRONTIER, arms=FRONTIER.arms[::4], questions=20),
    "answers_drift": DriftStore(arms=(BASE, deferring(2), skipping(6))),
}
KEPT = {"answers": ("md", "tex"), "answers_timed": ("md",), "answers_drift": ("md",)}


@pytest.mark.parametrize("name", KEPT)
def test_texts_are_the_golden_bytes(tmp_path: Path, name: str) -> None:
    for path in _written(name, tmp_path):
        golden = GOLDEN / f"{name}{path.suffix}"
        assert path.read_bytes() == golden.read_bytes(), f"{golden.name}: see the head of this file"


def _written(name: str, folder: Path) -> list[Path]:
    return [path for path in write_report(STORES[name].write(folder), KEPT[name]) if path.stem == "accuracy"]


def regenerate() -> None:
    for name in KEPT:
        with TemporaryDirectory() as folder:
            for path in _written(name, Path(folder)):
                (GOLDEN / f"{name}{path.suffix}").write_bytes(path.read_bytes())


if __name__ == "__main__":
    regenerate()
