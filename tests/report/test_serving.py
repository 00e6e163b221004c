"""Tables and figures of cells that served requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.report.data import csv_text
from ktbench.report.figures.speeds import frontier
from ktbench.report.methods import figure_caption
from ktbench.report.speed_table import table_of
from ktbench.results import Run
from ktbench.results.command import command_of
from ktbench.results.quantities.text import number
from ktbench.results.rows import is_unproven, rows_of
from ktbench.run.request import plan_request, read_request
from ktbench.spec.peers import OURS
from tests.report.drawn import speed_figure
from tests.report.served import served_run

QUICK = (
    *("workload.prompt=20", "workload.stream.answer=4", "sweep.control=false"),
    "engine.serving.chunk_tokens=16",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = ("workload.stream.concurrency=1,4", "workload.stream.requests=8")
    return served_run(tmp_path_factory.mktemp("served"), "concurrency", *QUICK, *words, rounds=2)


def test_a_table_shows_percentiles_of_what_users_wait_for(run: Run) -> None:
    rows = rows_of(run)
    table = table_of(run, rows)
    for what in ("first token", "between tokens", "whole answer"):
        assert len([one for one in table.headings if one.startswith(what)]) == 3
    assert {row.outcome for row in rows} <= {"OK", "NOISY"}
    single, many = (next(row for row in rows if row.settings["workload.stream.concurrency"] == n) for n in (1, 4))
    assert many.values["ttft_p50_s"].mid > 2 * single.values["ttft_p50_s"].mid, "one at a time, others wait"


def test_files_have_every_percentile(run: Run) -> None:
    head = csv_text(run, rows_of(run)).splitlines()[0].split(",")
    assert {"ttft_p50_s", "ttft_p99_s_low", "itl_p90_s", "end_to_end_p99_s", "goodput", "waiting"} <= set(head)


def test_the_figure_has_a_panel_for_each_rate_and_latency(run: Run) -> None:
    figure = speed_figure(run)
    assert len(figure.axes) == 6
    assert {axes.get_xlabel() for axes in figure.axes} == {"users"}
    assert [len(axes.containers) for axes in figure.axes] == [5] * 6


def test_bars_of_answers_of_one_token_are_of_the_time_to_it(tmp_path: Path) -> None:
    words = ("workload.stream.shared_prefix=128", "sweep.arms=[+v+d+l,+v+d+l+p warm]", "sweep.control=false")
    run = served_run(tmp_path, "prefix_cache", *words, rounds=2)
    rows = rows_of(run)
    shown = {text.get_text().lstrip("~") for axes in speed_figure(run).axes for text in axes.texts}
    base, other = rows
    assert other.speedup is not None
    assert shown == {"1.00×", f"{number(other.speedup.mid, 3)}×"}
    wait = f"({number(base.values['ttft_p50_s'].mid * 1e3, 3)} ms to the first token)"
    assert wait in figure_caption(run, rows)


def test_no_arm_is_marked_beside_a_system_that_did_not_run(run: Run) -> None:
    rows = rows_of(run)
    ours, peer = (next(row for row in rows if (row.spec.system == OURS) == own) for own in (True, False))
    assert is_unproven(ours, [ours, peer])
    assert not is_unproven(ours, [ours, replace(peer, values={})])


def test_drawn_tokens_are_compared_with_the_likeliest(tmp_path: Path) -> None:
    run = served_run(tmp_path, "sampling", *QUICK, "workload.stream.concurrency=2", "model.vocab=auto", rounds=6)
    greedy, drawn = rows_of(run)
    assert (drawn.label, drawn.spec.workload.stream and drawn.spec.workload.stream.temperature) == (
        "+v+d+l+b+k sampled", 1.0,
    )  # fmt: skip
    assert greedy.is_baseline and drawn.speedup is not None


def test_the_interactivity_of_arms_is_drawn_with_its_frontier(tmp_path: Path) -> None:
    run = served_run(
        tmp_path, "interactivity", *QUICK, "workload.stream.concurrency=1,4", "workload.stream.requests=8", rounds=1
    )
    (axes,) = speed_figure(run).axes
    assert axes.get_xlabel() == "output of one user, tokens/s"
    assert {text.get_text() for text in axes.texts} == {"1", "4"}


@pytest.mark.parametrize("name", ["concurrency", "chunk", "interactivity", "sampling"])
def test_chunked_prefill_cuts_prompts_of_every_point(name: str, tmp_path: Path) -> None:
    arms = ("sweep.arms=[+v+d+l+b,+v+d+l+b+k]", "sweep.baseline=+v+d+l+b")
    run = served_run(tmp_path, name, *arms, "workload.stream.answer=4", rounds=1)
    assert "IDLE" not in {row.outcome for row in rows_of(run)}


def test_a_frontier_has_the_points_that_no_other_exceeds() -> None:
    assert frontier([(1, 5), (2, 4), (2, 3), (1.5, 4), (3, 1), (0.5, 5)]) == [(1, 5), (2, 4), (3, 1)]


@pytest.mark.parametrize("name", ["concurrency", "chunk", "prefix_cache", "interactivity", "sampling"])
def test_a_row_is_run_again_by_its_command(name: str) -> None:
    for cell in plan_request(read_request([f"+ablation={name}"])).cells[:5]:
        words = command_of(cell.spec).split()[4:]
        (again,) = plan_request(read_request(words)).cells
        assert again.spec_id == cell.spec_id
