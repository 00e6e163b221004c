"""A report is a function of the store: the texts of a store of every kind, byte for byte.

After a wanted change: `python -m tests.report.test_golden` writes them anew; read the difference before keeping it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ktbench.report.comparison_table import write_comparison
from ktbench.report.write import write_report
from ktbench.results import Log, Run, read_run
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.record import Outcome
from tests.drawing import few_of
from tests.report import comparison_runs, paper_cells, peer_stores
from tests.report.accuracy_stores import BASE, FRONTIER, TABLE2, AnswerStore, DriftStore, deferring, skipping
from tests.report.attributed import FACTORIAL, LACKING
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.learned import ALIKE, BROKEN, WORSE, LearningStore
from tests.report.learned import BASE as BASE_TAUGHT
from tests.report.paper_cells import KT, cell, record
from tests.report.role_stores import DEFERRAL
from tests.report.simulated_runs import simulated
from tests.report.synthetic import NO_CUDA, NO_NUMA, Arm, Store, watched_run

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ("md", "csv", "json", "tex")
CRASHED = replace(BASE, label="+v+d deferral=8", ends={"reasoning_2": (Outcome.CRASHED, "the worker died: signal 9")})
NO_NODE = replace(BASE, label="+v+d+n", ends={"": (Outcome.UNSUPPORTED, "+n: one NUMA node")})
STILL = tuple(Arm(label=label, step_ms=ms, noise=0.0) for label, ms in (("base", 182.0), ("+v", 61.0), ("+v+d", 60.2)))
KERNELS = LayerStore(
    parts=(
        LayerPart(
            name="throughput",
            title="Throughput",
            arms=(
                LayerArm(label="base", share=0.3),
                LayerArm(label="+v", share=0.6),
                LayerArm(label="+v+d", share=0.9),
                LayerArm(label="+v int8", share=0.45),
                LayerArm(label="+v+d int8", share=0.9),
                LayerArm(label="+m int4_g32", outcome=Outcome.UNSUPPORTED, why="+m: this processor has no AMX"),
            ),
            tokens=(1, 64),
        ),
        LayerPart(
            name="domains",
            title="Domains",
            figure="bars",
            arms=(LayerArm(label="+v+d", share=0.8), LayerArm(label="+v+d+n", share=0.9)),
            tokens=(1,),
            domains=2,
            control=False,
        ),
    ),
    rounds=6,
)


def _simulated(folder: Path) -> Run:
    """Cells that run on a machine of paper."""
    arms = (*STILL, Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why="+n: testbed has one NUMA domain"))
    moved = simulated(Store(arms=arms, rounds=6, steps=1, drift=0.0, run="simulated").write(folder / "measured"))
    log = Log(folder / "simulated")
    log.append(moved.header, *moved.environments, *moved.records)
    log.close()
    return read_run(folder / "simulated")


def _beside(folder: Path) -> Run:
    return simulated(Store(arms=STILL, rounds=6, steps=1, drift=0.0, run="beside").write(folder), beside=True)


def _paper(folder: Path) -> Run:
    """Cells beside published numbers, one of them measured here, too, one not runnable here."""
    other = {"of": "qwen3_next_80b_a3b", "on": "xeon_6454s_4x4090"}
    ratio = cell(f"{KT} int8", placement=PlacementSpec(policy="random", ratio=0.3), **other)
    here, lacking = cell("base", on=None), cell(KT, on=None)
    lacked = record(lacking, 1.0, outcome=Outcome.UNSUPPORTED, why="+c: no CUDA device", samples_s=())
    simulated_s = {"base": 1 / 2.0, KT: 1 / 6.0, f"{KT} deferral=3": 1 / 8.0, f"{KT} deferral=2": 1 / 7.0}
    cells = [(cell(label), step_s) for label, step_s in simulated_s.items()]
    folder.mkdir(exist_ok=True)
    timed = [(one, record(one, step_s)) for one, step_s in (*cells, (here, 1 / 0.5), (ratio, 0.016))]
    return replace(paper_cells.run_of([*timed, (lacking, lacked)], "fig12", "fig14", "placement"), folder=folder)


# What is written of each store, in which formats. JSON repeats every record: one store is enough.
STORES: dict[str, tuple[Callable[[Path], Run], tuple[str, ...]]] = {
    "decode": (
        Store(
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
        ).write,
        FORMATS,
    ),
    "prefill": (
        Store(
            arms=(Arm(label="base", step_ms=2.0), Arm(label="+v", step_ms=9.0), Arm(label="+m", step_ms=0.25)),
            prompts=(128, 512),
            phase="prefill",
            rounds=6,
            steps=1,
            drift=0.0,
            title="Prefill breakdown",
            run="prefill",
        ).write,
        ("md", "csv"),
    ),
    "simulated": (_simulated, ("md", "csv")),
    "beside": (_beside, ("md", "csv")),
    "shares": (
        Store(arms=(*FACTORIAL, LACKING), figure="interactions", title="Interactions", run="shares").write,
        ("md", "csv"),
    ),
    "learned": (LearningStore(arms=(BASE_TAUGHT, BROKEN, ALIKE, WORSE)).write, ("md", "csv", "tex")),
    "kernels": (KERNELS.write, ("md", "csv")),
    "peers": (
        replace(peer_stores.DECODE, arms=peer_stores.UNPROVEN, precisions=("bf16", "int8"), control=False).write,
        ("md", "csv", "tex"),
    ),
    "roles": (replace(DEFERRAL, arms=DEFERRAL.arms[::3]).write, ("md", "csv", "tex")),
    "watched": (watched_run, ("md", "csv")),
    "paper": (_paper, ("md", "csv", "tex")),
    "answers": (
        AnswerStore(arms=(BASE, deferring(2), deferring(6), CRASHED, skipping(6), NO_NODE), questions=30).write,
        ("md", "tex", "csv"),
    ),
    "answers_timed": (replace(FRONTIER, arms=FRONTIER.arms[::4], questions=20).write, ("md",)),
    "answers_drift": (DriftStore(arms=(BASE, deferring(2), skipping(6))).write, ("md", "csv")),
    "answers_table2": (
        AnswerStore(arms=(BASE, deferring(6)), suite=TABLE2, questions=4, figure="accuracy").write,
        ("md",),
    ),
}


def golden_of(name: str, folder: Path) -> dict[Path, bytes]:
    """What is written of a store, by the file that holds it here: the first document has the name of the store."""
    write, formats = STORES[name]
    paths = write_report(write(folder), formats)
    stems = {path: "" if path.stem == paths[0].stem else f"_{path.stem}" for path in paths}
    read = _rounded if name.startswith(("answers", "learned")) else Path.read_bytes
    return {GOLDEN / f"{name}{stem}{path.suffix}": read(path) for path, stem in stems.items()}


def _rounded(path: Path) -> bytes:
    """A file, its long numbers to nine digits: the last ones of quantiles depend on the library."""
    return re.sub(rb"\d+\.\d{10,}(e-?\d+)?", lambda found: f"{float(found[0]):.9g}".encode(), path.read_bytes())


def compared(folder: Path) -> dict[Path, bytes]:
    """A comparison of two runs."""
    paths = write_comparison(comparison_runs.doubtful(folder))
    return {GOLDEN / path.name: _rounded(path).replace(bytes(folder), b"RUNS") for path in paths}


def assert_golden(written: dict[Path, bytes]) -> None:
    for path, text in written.items():
        assert path.read_bytes() == text, f"{path.name}: see the head of this file"


@pytest.mark.parametrize("name", STORES)
def test_texts_are_the_golden_bytes(tmp_path: Path, name: str) -> None:
    assert_golden(golden_of(name, tmp_path))


def test_comparisons_are_the_golden_bytes(tmp_path: Path) -> None:
    assert_golden(compared(tmp_path))


@pytest.mark.parametrize("name", few_of(["decode", "prefill", "simulated", "shares"], {"prefill", "shares"}))
def test_the_same_store_gives_the_same_bytes_again(tmp_path: Path, name: str) -> None:
    run = STORES[name][0](tmp_path)
    first = {path.name: path.read_bytes() for path in write_report(run)}
    documents = ("table", "attribution") if name == "shares" else ("table",)
    texts = {f"{document}.{f}" for document in documents for f in FORMATS}
    assert set(first) == texts | {"figure.pdf", "figure.svg", "figure.png", "page.html"}
    assert {path.name: path.read_bytes() for path in write_report(read_run(run.folder))} == first


def regenerate() -> None:
    with TemporaryDirectory() as folder:
        for name in STORES:
            for path, text in golden_of(name, Path(folder) / name).items():
                path.write_bytes(text)
        for path, text in compared(Path(folder)).items():
            path.write_bytes(text)


if __name__ == "__main__":
    regenerate()
