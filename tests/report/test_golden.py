"""A report is a function of the store: the texts of four stores, byte for byte.

After a wanted change: `python -m tests.report.test_golden` writes them anew; read the difference before keeping it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ktbench.report.write import write_report
from ktbench.results import Log, Run, read_run
from ktbench.spec.record import Outcome
from tests.report.attributed import FACTORIAL, LACKING
from tests.report.simulated_runs import simulated
from tests.report.synthetic import NO_CUDA, NO_NUMA, Arm, Store

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ("md", "csv", "json", "tex")
# JSON repeats every record: one of them is enough.
KEPT = {"decode": FORMATS, "prefill": ("md", "csv"), "simulated": ("md", "csv"), "shares": ("md", "csv")}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A store whose cells run on a machine of paper."""

    store: Store

    def write(self, folder: Path) -> Run:
        moved = simulated(self.store.write(folder / "measured"))
        log = Log(folder / self.store.run)
        log.append(moved.header, *moved.environments, *moved.records)
        log.close()
        return read_run(folder / self.store.run)


STORES: dict[str, Store | Simulated] = {
    "decode": Store(
        arms=(
            Arm(label="base", step_ms=182.0),
            Arm(label="+v", step_ms=61.0, noise=0.2),
            Arm(label="+m", outcome=Outcome.WRONG, why="layer 2: relative error 0.127, tolerance 0.01", fails_at=3),
            Arm(label="+v+d", step_ms=60.2),
            Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why=NO_NUMA),
            Arm(label="+v+d+n+c", outcome=Outcome.UNSUPPORTED, why=NO_CUDA),
        ),
        rounds=6,
        steps=1,
        drift=0.02,
        ping_pong_ns=(60.0, 190.0),
        run="decode",
    ),
    "prefill": Store(
        arms=(Arm(label="base", step_ms=2.0), Arm(label="+v", step_ms=9.0), Arm(label="+m", step_ms=0.25)),
        prompts=(128, 512),
        phase="prefill",
        rounds=6,
        steps=1,
        drift=0.0,
        title="Prefill breakdown",
        run="prefill",
    ),
    "simulated": Simulated(
        store=Store(
            arms=(
                Arm(label="base", step_ms=182.0, noise=0.0),
                Arm(label="+v", step_ms=61.0, noise=0.0),
                Arm(label="+v+d", step_ms=60.2, noise=0.0),
                Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why="+n: testbed has one NUMA domain"),
            ),
            rounds=6,
            steps=1,
            drift=0.0,
            run="simulated",
        ),
    ),
    "shares": Store(arms=(*FACTORIAL, LACKING), figure="interactions", title="Interactions", run="shares"),
}
# Documents beside that of the table.
BESIDE = {"shares": ("attribution",)}


@pytest.mark.parametrize("name", KEPT)
def test_texts_are_the_golden_bytes(tmp_path: Path, name: str) -> None:
    for path in write_report(STORES[name].write(tmp_path), KEPT[name]):
        golden = golden_of(name, path)
        assert path.read_bytes() == golden.read_bytes(), f"{golden.name}: see the head of this file"


@pytest.mark.parametrize("name", STORES)
def test_the_same_store_gives_the_same_bytes_again(tmp_path: Path, name: str) -> None:
    run = STORES[name].write(tmp_path)
    first = {path.name: path.read_bytes() for path in write_report(run)}
    documents = ("table", *BESIDE.get(name, ()))
    texts = {f"{document}.{f}" for document in documents for f in FORMATS}
    assert set(first) == texts | {"figure.pdf", "figure.svg", "figure.png", "page.html"}
    assert {path.name: path.read_bytes() for path in write_report(read_run(run.folder))} == first


def golden_of(name: str, path: Path) -> Path:
    """Where the golden bytes of a file of a report are."""
    return GOLDEN / f"{name}{'' if path.stem == 'table' else f'_{path.stem}'}{path.suffix}"


def regenerate() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, formats in KEPT.items():
        with TemporaryDirectory() as folder:
            for path in write_report(STORES[name].write(Path(folder)), formats):
                golden_of(name, path).write_bytes(path.read_bytes())


if __name__ == "__main__":
    regenerate()
