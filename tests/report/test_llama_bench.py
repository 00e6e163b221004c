"""The table in llama-bench's form: names, sizes and speeds agree with the rows and with arithmetic by hand."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import pytest

from ktbench.cli import main
from ktbench.report.exchange.llama_bench import llama_bench
from ktbench.results import Run, read_run
from ktbench.results.rows import rows_of
from tests.report.synthetic import CONFIG, Store
from tests.report.test_golden import KERNELS

ROOT = Path(__file__).parents[2]


def cells_of(text: str) -> list[dict[str, str]]:
    heading, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    return [dict(zip(heading, line, strict=True)) for line in lines]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Store(run="stored", rounds=6).write(tmp_path_factory.mktemp("runs"))


def test_speeds_are_means_over_rounds(run: Run) -> None:
    rows = [row for row in rows_of(run) if row.role == "arm" and row.timed]
    lines = cells_of(llama_bench(run, rows_of(run)))
    assert [line["arm"] for line in lines] == [row.label for row in rows]
    for row, line in zip(rows, lines, strict=True):
        speeds = [1 / seconds for seconds in row.round_s.values()]
        assert [float(word) for word in line["t/s"].split(" ± ")] == pytest.approx(
            [mean(speeds), stdev(speeds)], abs=0.006
        )
        assert line["provenance"] == "measured"


def test_size_and_parameters_are_those_of_the_shapes(run: Run) -> None:
    experts = CONFIG["num_hidden_layers"] * CONFIG["num_experts"] * 3 * 2048 * 768
    attention = CONFIG["num_hidden_layers"] * 128 * 2048 * (2 * 32 + 2 * 4)
    tables = 2 * CONFIG["vocab_size"] * 2048
    line = cells_of(llama_bench(run, rows_of(run)))[0]
    assert float(line["params"].removesuffix(" B")) == pytest.approx((experts + attention + tables) / 1e9, rel=0.01)
    assert float(line["size"].removesuffix(" GiB")) == pytest.approx((experts + attention + tables) / 2**29, rel=0.01)


def test_recorded_prefill_and_decode_name_their_tests() -> None:
    folder = ROOT / "reports" / "recorded" / "granite_rapids_2_cores"
    found = {name: read_run(folder / name) for name in ("decode", "prefill")}
    tests = {name: {line["test"] for line in cells_of(llama_bench(one, rows_of(one)))} for name, one in found.items()}
    assert all(test.startswith("tg") and " @ d" in test for test in tests["decode"])
    assert all(test.startswith("pp") for test in tests["prefill"])


def test_a_layer_alone_has_no_such_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = KERNELS.write(tmp_path)
    assert main(["report", str(kernels.folder), "llama_bench"]) == 2
    assert "this run has none" in capsys.readouterr().err


def test_it_is_printed_alone(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run.folder), "llama_bench"]) == 0
    assert capsys.readouterr().out == (run.folder / "report" / "llama_bench.md").read_text()
