"""Weights loaded anew between blocks of rounds: blocks as clusters, verdicts under noise that sticks, equal cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.report.equal_cells import equal_cells_content, equal_cells_grid, equal_cells_sentence
from ktbench.report.speed_table import table_of
from ktbench.results.equal_cells import false_verdicts
from ktbench.results.intervals import by_block, median_interval
from ktbench.results.rows import rows_of
from ktbench.results.speedups import Verdict, judge, paired_interval
from ktbench.results.stopping import SweepCriterion
from ktbench.results.strata import wilson_interval
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.sweep import SweepSpec
from ktbench.spec.wire import spec_id
from tests.report.synthetic import Arm, Store
from tests.results.noise import Array
from tests.tiny import tiny_spec

MOVED = (Verdict.FASTER, Verdict.SLOWER)


@pytest.mark.parametrize(
    ("least", "blocks", "expected"),
    [
        (6, 1, [0, 1, 2, 3, 4, 5, 6]),
        (6, 6, [0, 1, 2, 3, 4, 5, 6]),
        (6, 3, [0, 0, 1, 1, 2, 2, 3]),
        (7, 2, [0, 0, 0, 1, 1, 1, 2]),
    ],
)
def test_the_least_rounds_make_so_many_blocks(least: int, blocks: int, expected: list[int]) -> None:
    measure = MeasureSpec(min_rounds=least, reload_blocks=blocks)
    assert [measure.block_of(number) for number in range(7)] == expected
    assert [measure.load_of(number) for number in range(7)] == (expected if blocks > 1 else [0] * 7)


@pytest.mark.parametrize("blocks", [0, -1, 7])
def test_more_blocks_than_rounds_are_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="measure.reload_blocks=.*min_rounds=6"):
        MeasureSpec(reload_blocks=blocks)


@pytest.mark.parametrize("values", [(1, 6), ({"workload.batch": 1, "measure.reload_blocks": 6},)])
def test_blocks_are_no_axis(values: tuple[object, ...]) -> None:
    key = "measure.reload_blocks" if values == (1, 6) else "workload.batch"
    with pytest.raises(ValueError, match="the same for all cells of a run"):
        SweepSpec(arms=("base",), axes={key: values})


def test_the_id_of_a_spec_has_blocks_only_where_there_are_any() -> None:
    plain = tiny_spec(measure={"min_rounds": 6, "max_rounds": 6})
    ids = {
        blocks: spec_id(replace(plain, measure=replace(plain.measure, reload_blocks=blocks))) for blocks in (1, 2, 3)
    }
    assert ids[1] == spec_id(tiny_spec())  # as before there were blocks
    assert len({*ids.values()}) == 3


def test_a_block_counts_once_however_many_rounds_it_has() -> None:
    draws = [1.0, 1.1, 0.9, 1.05, 1.02, 0.97]
    ratios = {n: draws[n // 10] for n in range(60)}
    ones = dict.fromkeys(ratios, 1.0)
    assert paired_interval(ratios, ones, lambda n: n // 10) == median_interval(draws)
    assert paired_interval(ratios, ones) == median_interval([*ratios.values()])


def test_rounds_that_cannot_be_compared_are_left_out_of_their_block() -> None:
    values = {0: 1.0, 1: None, 2: 3.0, 3: None, 4: None, 5: None}
    assert by_block(values, lambda n: n // 3) == {0: 2.0, 1: None}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Noise of one cell over its rounds, in logarithms, with the weights loaded anew every so many rounds."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Array]


def independent(rng: np.random.Generator, count: int, per_load: int) -> Array:
    return np.asarray(rng.normal(0, 0.02, count))


def drifting(rng: np.random.Generator, count: int, per_load: int) -> Array:
    """AR(0.9) of a cell alone, whatever is loaded; its standard deviation is 5 %."""
    steps = rng.normal(0, 0.05 * np.sqrt(1 - 0.9**2), count)
    steps[0] = rng.normal(0, 0.05)
    for n in range(1, count):
        steps[n] += 0.9 * steps[n - 1]
    return steps


def drifting_anew(rng: np.random.Generator, count: int, per_load: int) -> Array:
    """The same, where a load begins another drift."""
    return np.concatenate([drifting(rng, min(per_load, count - n), 0) for n in range(0, count, per_load)])


def stuck(rng: np.random.Generator, count: int, per_load: int) -> Array:
    """Two places of the pages, 5 % apart, that last as long as the weights stay loaded."""
    loads = -(-count // per_load)
    return np.repeat(0.05 * rng.integers(0, 2, loads), per_load)[:count] + rng.normal(0, 0.005, count)


KINDS = tuple(Kind(name=one.__name__, draw=one) for one in (independent, drifting, drifting_anew, stuck))


def false_share(kind: Kind, blocks: int, per_block: int, runs: int, *, reloads: bool, seed: int = 4) -> float:
    """Share of runs in which two equal cells are called faster or slower."""
    rng, count, called = np.random.default_rng(seed), blocks * per_block, 0
    for _ in range(runs):
        times = [np.exp(kind.draw(rng, count, per_block if reloads else count)) for _ in range(2)]
        base, cell = (dict(enumerate(one.tolist())) for one in times)
        block_of = MeasureSpec(min_rounds=count, max_rounds=count, reload_blocks=blocks if reloads else 1).block_of
        called += judge(paired_interval(base, cell, block_of)) in MOVED
    return called / runs


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.name)
def test_noise_that_sticks_to_a_load_fools_one_load_and_not_several(kind: Kind) -> None:
    assert false_share(kind, 6, 2, 300, reloads=False) > 0.2
    assert false_share(kind, 6, 2, 300, reloads=True) <= 0.07


def test_blocks_do_not_fool_where_rounds_are_independent() -> None:
    assert false_share(KINDS[0], 6, 2, 300, reloads=True) <= 0.07


@pytest.mark.coverage
@pytest.mark.parametrize("per_block", [2, 10])
@pytest.mark.parametrize("kind", [KINDS[0], *KINDS[2:]], ids=lambda kind: kind.name)
def test_false_verdicts_over_loads_are_at_most_five_percent(
    kind: Kind, per_block: int, request: pytest.FixtureRequest
) -> None:
    if "coverage" not in request.config.option.markexpr:
        pytest.skip("takes minutes in all: nox -s coverage")
    assert false_share(kind, 6, per_block, 4000, reloads=True) <= 0.05


MEASURE = MeasureSpec(min_rounds=36, max_rounds=36, reload_blocks=6)
EQUAL = Store(
    arms=(Arm(label="base", noise=0.002), Arm(label="+v", step_ms=60.0, noise=0.002)),
    rounds=36,
    control=False,
    copies=3,
    measure=MEASURE,
)


def slowed(store: Store, folder: Path, factor: Callable[[int, int], float]) -> Sequence[float]:
    """The store with every copy slower by a factor of its number and the load, and the shares of its false verdicts."""
    run = store.write(folder)
    cells = {cell.key: cell for cell in run.header.cells}
    records = tuple(
        replace(
            one, samples_s=tuple(s * factor(cells[one.cell].copy, MEASURE.load_of(one.round)) for s in one.samples_s)
        )
        for one in run.records
    )
    return [one.share for one in false_verdicts(rows_of(replace(run, records=records)))]


def test_equal_cells_without_noise_are_never_called_unequal(tmp_path: Path) -> None:
    assert slowed(EQUAL, tmp_path, lambda copy, load: 1.0) == [0.0] * 6


def test_places_that_change_with_the_load_are_seen_inside_one_load_alone(tmp_path: Path) -> None:
    """One copy is slow in each load, another one in the next: pairs with it are called unequal, three of six."""
    shares = slowed(EQUAL, tmp_path, lambda copy, load: 1.2 if copy == load % 4 else 1.0)
    assert shares == pytest.approx([0.5, 0.0] * 3)


def test_a_place_that_stays_is_seen_over_loads_too(tmp_path: Path) -> None:
    assert slowed(EQUAL, tmp_path, lambda copy, load: 1.2 if copy == 0 else 1.0) == pytest.approx([0.5] * 6)


def test_the_share_has_the_interval_of_pairs_without_a_common_cell(tmp_path: Path) -> None:
    found = false_verdicts(rows_of(EQUAL.write(tmp_path)))
    assert [(one.arm, one.loads, one.comparisons, one.independent) for one in found] == [
        ("base", 1, 36, 12), ("base", 6, 6, 2), ("+v", 1, 36, 12), ("+v", 6, 6, 2), ("", 1, 72, 12), ("", 6, 12, 2),
    ]  # fmt: skip
    assert found[-1].ends == wilson_interval(0, 2)


def test_equal_cells_are_in_table_caption_and_content(tmp_path: Path) -> None:
    run = EQUAL.write(tmp_path)
    rows = rows_of(run)
    table, sentence = table_of(run, rows), equal_cells_sentence(rows)
    assert table.grids == equal_cells_grid(rows) and len(table.grids[0].lines) == 6
    assert "0 of 72" in sentence and sentence in table.figure_caption
    assert [one["comparisons"] for one in equal_cells_content(rows)] == [36, 6, 36, 6, 72, 12]


def test_without_copies_there_is_nothing_to_say(tmp_path: Path) -> None:
    rows = rows_of(replace(EQUAL, copies=0, control=True).write(tmp_path))
    assert (false_verdicts(rows), equal_cells_sentence(rows), equal_cells_grid(rows)) == ((), "", ())


def test_the_criterion_counts_blocks_as_rows_do(tmp_path: Path) -> None:
    measure = MeasureSpec(min_rounds=12, max_rounds=60, reload_blocks=6)
    run = replace(EQUAL, copies=0, control=True, rounds=12, measure=measure).write(tmp_path)
    criterion = SweepCriterion(run.header.cells, run.header.parts, measure, {})
    for number in range(12):
        assert not criterion.finished()
        criterion.add(one for one in run.records if one.round == number)
    steps = {one.cell.key: one.step_s for one in criterion.progress()}
    assert criterion.finished()
    assert {row.cell: row.step_s for row in rows_of(run)} == steps
    assert {step.n for step in steps.values() if step} == {6}
