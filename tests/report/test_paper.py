"""Published, simulated and measured side by side: nothing lost, nothing paired wrongly, every gap with its reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results import Run, read_published
from ktbench.results.paper import PaperLine, error_summary, paper_lines
from ktbench.results.rows import rows_of
from ktbench.spec.record import Cell, Evidence, Outcome, Record
from tests.report.paper_cells import KT, cell, machine, record, run_of

BASE, FULL, DEFERRED = cell("base"), cell(KT), cell(f"{KT} deferral=3")


def lines_of(run: Run) -> tuple[PaperLine, ...]:
    return paper_lines(run, rows_of(run))


def line(lines: tuple[PaperLine, ...], arm: str, model: str = "deepseek_v3", machine: str = "paper_a100") -> PaperLine:
    return next(one for one in lines if (one.arm, one.model, one.machine) == (arm, model, machine))


def decode() -> Run:
    """Three arms simulated, one of them measured here, too, one not runnable here."""
    here, lacking = cell("base", on=None), cell(KT, on=None)
    lacked = record(lacking, 1.0, outcome=Outcome.UNSUPPORTED, why="+c: no CUDA device", samples_s=())
    timed: list[tuple[Cell, Record | None]] = [
        (BASE, record(BASE, 1 / 2.0)),
        (FULL, record(FULL, 1 / 6.0)),
        (DEFERRED, record(DEFERRED, 1 / 8.0)),
        (here, record(here, 1 / 0.5)),
        (lacking, lacked),
    ]
    return run_of(timed, "fig12")


def test_every_published_number_has_a_line_in_the_order_of_its_file() -> None:
    assert [one.id for one in lines_of(decode())] == [number.id for number in read_published("fig12")]


def test_a_simulated_cell_stands_beside_its_number_with_its_error() -> None:
    lines = lines_of(decode())
    for arm, published, simulated in (("base", 2.43, 2.0), (KT, 5.87, 6.0), (f"{KT} deferral=3", 7.79, 8.0)):
        found = line(lines, arm)
        assert found.published == published
        assert found.simulated == pytest.approx(simulated)
        assert found.error == pytest.approx(simulated / published - 1)
        assert "machine=paper_a100" in found.command
        assert found.cell


def test_what_was_measured_here_is_shown_and_what_was_not_says_why() -> None:
    lines = lines_of(decode())
    assert line(lines, "base").measured == pytest.approx(0.5)
    assert "no CUDA device" in line(lines, KT).missing["measured"]
    assert line(lines, f"{KT} deferral=3").missing["measured"] == "no cell of this work was planned on this machine"


def test_numbers_without_a_cell_say_why() -> None:
    lines = lines_of(decode())
    assert "our own engine" in line(lines, "llama.cpp").missing["simulated"]
    assert "no cell at its settings" in line(lines, KT, model="deepseek_v2").missing["simulated"]
    assert all(one.published is not None and (one.simulated is not None) == (one.error is not None) for one in lines)


def test_a_cell_without_a_number_has_a_line() -> None:
    extra = cell(f"{KT} deferral=2")
    *_, last = lines_of(run_of([(FULL, record(FULL, 0.2)), (extra, record(extra, 0.125))], "fig12"))
    assert (last.arm, last.published, last.error) == (f"{KT} deferral=2", None, None)
    assert last.simulated == pytest.approx(8.0)
    assert "published" in last.missing


def test_a_cell_that_could_not_be_simulated_says_why() -> None:
    lacked = record(FULL, 1.0, outcome=Outcome.UNSUPPORTED, why="no such kernel", samples_s=())
    found = line(lines_of(run_of([(BASE, record(BASE, 0.5)), (FULL, lacked)], "fig12")), KT)
    assert (found.simulated, found.error) == (None, None)
    assert found.missing["simulated"] == "UNSUPPORTED: no such kernel"


def test_controls_are_no_lines_and_figures_of_other_parts_are_not_shown() -> None:
    control = replace(BASE, label="base (A/A)", role="control")
    run = run_of([(BASE, record(BASE, 0.5)), (control, record(control, 0.5))], "fig12")
    shown = replace(run, published=(*run.published, *read_published("fig11")))
    assert len(lines_of(shown)) == 21


def test_measured_needs_the_same_work_but_not_the_same_routing_or_steps() -> None:
    here = cell("base", on=None, steps=16, routing="zipf")
    other = cell("base", on=None, prompt=512)
    run = run_of([(BASE, record(BASE, 0.5)), (other, record(other, 9.0)), (here, record(here, 4.0))], "fig12")
    assert line(lines_of(run), "base").measured == pytest.approx(0.25)


def test_measured_is_this_machine_with_or_without_a_gpu() -> None:
    asked = cell("base", on=None)
    spec = replace(asked.spec, engine=replace(asked.spec.engine, device="cpu"))
    here = replace(asked, spec=spec, spec_id="without a GPU")
    assert (
        line(lines_of(run_of([(BASE, record(BASE, 0.5)), (here, record(here, 4.0))], "fig12")), "base").measured == 0.25
    )


def test_shares_of_the_time_and_what_deferral_saves() -> None:
    run = run_of([(FULL, record(FULL, 0.2)), (DEFERRED, record(DEFERRED, 0.15))], "fig10")
    found = {(one.arm, one.metric): one for one in lines_of(run)}
    assert found[KT, "% host busy"].simulated == pytest.approx(70)
    assert found[KT, "% host busy"].error == pytest.approx(70 / 74 - 1)
    assert found[KT, "% device busy"].simulated == pytest.approx(40)
    assert found[KT, "% overlap"].simulated == pytest.approx(10)
    saved = found[f"{KT} deferral=3", "% time saved"]
    assert saved.simulated == pytest.approx(25)
    assert saved.error == pytest.approx(0.74 / 0.75 - 1)
    assert found[KT, "%"].missing["simulated"] == "its step has no value in %"


def test_layers_are_shown_in_the_unit_of_their_figure() -> None:
    socket = replace(machine("paper_a100"), domains=1)
    slow, fast = cell("+m+d", on=socket, phase="layer", batch=64), cell("+m+d+n", phase="layer", batch=64)
    kernel = lines_of(run_of([(slow, record(slow, 2.0))], "fig3"))
    assert next(one for one in kernel if one.simulated is not None).simulated == pytest.approx(0.5)  # TFLOPS
    layer = next(one for one in lines_of(run_of([(fast, record(fast, 0.1))], "fig7")) if one.simulated is not None)
    assert (layer.published, layer.tokens) == (91.1, 2)
    assert layer.simulated == pytest.approx(100)
    assert layer.error == pytest.approx(91.1 / 100 - 1)


def test_accuracy_is_published_alone() -> None:
    lines = lines_of(run_of([(FULL, record(FULL, 0.2))], "table2"))
    assert {one.missing.get("simulated") for one in lines if one.published is not None} == {"only speeds are"}


DECODE = decode()
LINES = lines_of(DECODE)


@given(st.lists(st.floats(-0.9, 10), min_size=1, max_size=40))
def test_the_summary_is_numpys(errors: list[float]) -> None:
    summary = error_summary([replace(LINES[0], error=error) for error in (*errors, None)])
    assert summary is not None
    sizes = np.abs(errors)
    assert summary.n == len(errors)
    assert summary.median == pytest.approx(np.median(sizes))
    assert summary.p90 == pytest.approx(np.percentile(sizes, 90))
    assert (summary.largest, summary.bias) == (pytest.approx(sizes.max()), pytest.approx(np.mean(errors)))


def test_repeats_count_once() -> None:
    run = run_of([(BASE, record(BASE, 0.5)), (FULL, record(FULL, 0.2))], "fig12", "fig14")
    lines = lines_of(run)
    assert sum(one.error is not None for one in lines) == 3
    summary = error_summary(lines)
    assert summary is not None and summary.n == 2
    assert error_summary([]) is None


def test_what_was_published_of_the_cost_of_deferral_is_a_remark() -> None:
    """Fig. 13 gives the change of the average of DeepSeek-V3 with six experts deferred as -0.5 %."""
    costs = {}
    for arm, of, deferred in (
        (KT, "deepseek_v3", 0),
        (f"{KT} deferral=6", "deepseek_v3", 6),
        (f"{KT} deferral=auto", "deepseek_v3", 6),
        (f"{KT} deferral=auto", "qwen3_30b_a3b", 6),
        (f"{KT} deferral=6", "qwen3_30b_a3b", 6),
    ):
        one = cell(arm, of=of)
        evidence = Evidence(feature="deferral", asked=deferred, counter="deferred_experts", seen=deferred)
        (row,) = rows_of(run_of([(one, record(one, 0.1, evidence=(evidence,)))]))
        costs[arm.removeprefix(KT), of] = [remark for remark in row.remarks if remark.startswith("deferring 6 ")]
    assert costs["", "deepseek_v3"] == costs[" deferral=6", "qwen3_30b_a3b"] == []
    ((by_six,), (by_auto,)) = costs[" deferral=6", "deepseek_v3"], costs[" deferral=auto", "deepseek_v3"]
    assert by_six == by_auto and "-0.5 %" in by_six
    (unknown,) = costs[" deferral=auto", "qwen3_30b_a3b"]
    assert "%" not in unknown
