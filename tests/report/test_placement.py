"""Only trials with the cores in the same place are compared; what that leaves out is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results import Run
from ktbench.results.rows import judged_values, rows_of
from ktbench.spec.record import Outcome, Record, RoofSample
from tests.report.reading import row, table
from tests.report.synthetic import Arm, Store

NEAR, FAR = (60.0, 60.0), (190.0, 190.0)
MOVED = (60.0, 190.0)
STILL = (Arm(label="base", step_ms=100.0, noise=0.0), Arm(label="+v", step_ms=50.0, noise=0.0))


def placed(run: Run, where: Callable[[Record], tuple[float | None, float | None]]) -> Run:
    """The run with every turn's cores where `where` puts them, before and after."""

    def moved(record: Record) -> Record:
        roofs = (replace(r, ping_pong_ns=ns) for r, ns in zip(record.roofs, where(record), strict=True))
        return replace(record, roofs=tuple(roofs))

    return replace(run, records=tuple(map(moved, run.records)))


def roofed(run: Run, roofs: Callable[[Record], tuple[RoofSample, ...]]) -> Run:
    return replace(run, records=tuple(replace(record, roofs=roofs(record)) for record in run.records))


def store(tmp_path: Path, **changes: object) -> Run:
    return Store(arms=STILL, drift=0.0, steps=1, **changes).write(tmp_path)  # type: ignore[arg-type]


def slower(run: Run, label: str, rounds: range, factor: float) -> Run:
    def changed(record: Record) -> Record:
        hit = record.label == label and record.round in rounds
        return replace(record, samples_s=tuple(s * factor for s in record.samples_s)) if hit else record

    return replace(run, records=tuple(map(changed, run.records)))


def test_a_ratio_needs_both_cores_in_the_same_place(tmp_path: Path) -> None:
    """Far turns of +v are three times as slow: against near turns of base they would pull the median to 2/3."""
    run = slower(store(tmp_path), "+v", range(6, 12), 3.0)
    mixed = placed(run, lambda r: FAR if r.label == "+v" and r.round >= 6 else NEAR)
    found = row(mixed, "+v")
    assert found.speedup is not None and found.speedup.n == 6
    assert found.speedup.mid == pytest.approx(2.0, rel=0.01)
    assert found.outcome is Outcome.OK
    assert row(run, "+v").speedup.n == 12  # type: ignore[union-attr]


def test_far_against_far_is_a_pair_too(tmp_path: Path) -> None:
    run = placed(store(tmp_path), lambda r: FAR if r.round % 2 else NEAR)
    assert row(run, "+v").speedup.n == 12  # type: ignore[union-attr]


@pytest.mark.parametrize("label", ["base", "+v"])
def test_a_turn_that_moved_is_in_no_ratio(tmp_path: Path, label: str) -> None:
    run = placed(store(tmp_path), lambda r: MOVED if r.label == label and r.round < 5 else NEAR)
    assert row(run, "+v").speedup.n == 7  # type: ignore[union-attr]
    both = placed(store(tmp_path / "b"), lambda r: MOVED if r.round < 5 else NEAR)
    assert row(both, "+v").speedup.n == 7  # type: ignore[union-attr]


def test_too_few_pairs_are_noisy_and_say_why(tmp_path: Path) -> None:
    run = placed(store(tmp_path), lambda r: FAR if r.label == "+v" and r.round >= 4 else NEAR)
    found = row(run, "+v")
    assert found.outcome is Outcome.NOISY
    assert found.why == "4 of 12 rounds compare cores in the same place, an interval of 95% needs 6"
    assert f"+v — NOISY: {found.why}" in table(run).notes
    assert found.rounds == 12 and found.step_s is not None and found.step_s.n == 12


def test_no_pair_leaves_nothing_to_compare_rather_than_mixing(tmp_path: Path) -> None:
    run = placed(store(tmp_path), lambda r: FAR if r.label == "+v" else NEAR)
    found = row(run, "+v")
    assert (found.outcome, found.speedup, found.gain) == (Outcome.NOISY, None, None)
    assert found.why == "0 of 12 rounds compare cores in the same place, an interval of 95% needs 6"
    reason = "in no round had it and base the cores in the same place"
    assert found.missing["speedup"] == found.missing["gain"] == reason
    assert f"+v — {reason}" in table(run).notes
    assert found.timed


def test_the_control_and_gains_pair_alike_too(tmp_path: Path) -> None:
    arms = (*STILL, Arm(label="+v+d", step_ms=40.0, noise=0.0))
    run = Store(arms=arms, drift=0.0, steps=1).write(tmp_path)
    run = placed(run, lambda r: FAR if r.label in ("base (A/A)", "+v+d") and r.round < 3 else NEAR)
    assert row(run, "base (A/A)").speedup.n == 9  # type: ignore[union-attr]
    gain = row(run, "+v+d").gain
    assert gain is not None and (gain.over, gain.ratio.n) == ("+v", 9)


def test_a_round_that_does_not_count_is_none_to_the_stopping_rule(tmp_path: Path) -> None:
    run = placed(store(tmp_path, rounds=3), lambda r: FAR if r.label == "+v" and r.round == 1 else NEAR)
    rows = rows_of(run)
    values = judged_values(next(r for r in rows if r.label == "+v"), rows)
    assert [None if value is None else round(value, 1) for value in values.values()] == [2.0, None, 2.0]
    assert list(values) == [0, 1, 2]
    assert None not in judged_values(rows[0], rows).values()


def test_unknown_places_are_compared_as_before(tmp_path: Path) -> None:
    run = store(tmp_path, ping_pong_ns=(None,))
    assert row(run, "+v").speedup.n == 12  # type: ignore[union-attr]
    assert not any(sentence.startswith("Cores: ") for sentence in table(run).conditions)


def test_a_known_place_is_not_compared_with_an_unknown_one(tmp_path: Path) -> None:
    run = placed(store(tmp_path), lambda r: (None, None) if r.label == "+v" else NEAR)
    assert row(run, "+v").speedup is None


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (lambda r: NEAR, "Cores: near in 36 trials (60 ns from core to core)."),
        (
            lambda r: {0: FAR, 1: MOVED, 2: (10.0, 11.0)}.get(r.round, NEAR),
            "Cores: same core in 3 trials, near in 27, far in 3, moved in 3 (10 to 190 ns from core to core); "
            "only trials with the cores in the same place are compared.",
        ),
        (
            lambda r: (60.0, 5_994_302.0) if r.label == "+v" else NEAR,  # the other core ran something else meanwhile
            "Cores: near in 24 trials, unknown in 12 (60 ns from core to core); "
            "only trials with the cores in the same place are compared.",
        ),
        (
            lambda r: (None, None) if r.label == "+v" else NEAR,
            "Cores: near in 24 trials, unknown in 12 (60 ns from core to core); "
            "only trials with the cores in the same place are compared.",
        ),
    ],
)
def test_the_caption_counts_turns_by_place(
    tmp_path: Path, where: Callable[[Record], tuple[float | None, float | None]], said: str
) -> None:
    assert said in table(placed(store(tmp_path), where)).conditions


def reading(gb_per_s: float, ns: float = 60.0) -> RoofSample:
    return RoofSample(read_bytes_per_s=gb_per_s * 1e9, peak_flops=None, peak_isa="reference", ping_pong_ns=ns)


def test_a_roof_share_leaves_out_roofs_of_turns_that_moved_or_whose_roofs_disagree(tmp_path: Path) -> None:
    """1.1 GB in 50 ms are 22 GB/s: half of 44, all of 22 GB/s."""
    steady, moved, disagreeing = (44.0, 44.0), (22.0, 22.0), (22.0, 44.0)

    def roofs(record: Record) -> tuple[RoofSample, ...]:
        if record.round < 2:
            return reading(moved[0]), reading(moved[1], 190.0)
        pair = disagreeing if record.round < 5 else steady
        return reading(pair[0]), reading(pair[1])

    run = roofed(store(tmp_path), roofs)
    found = row(run, "+v").values
    assert (found["roof_share"].n, found["roofs_left_out"], found["roofs_steady"]) == (12, 5, True)
    assert (found["roof_share"].low, found["roof_share"].high) == pytest.approx((0.5, 0.5), rel=0.01)
    assert any("15 of 36 trials" in sentence for sentence in table(run).methods)


@pytest.mark.parametrize(("ratio", "left_out"), [(1.19, 0), (1.21, 6)])
def test_roofs_may_differ_by_a_fifth(tmp_path: Path, ratio: float, left_out: int) -> None:
    run = roofed(store(tmp_path), lambda r: (reading(44.0), reading(44.0 * (ratio if r.round < 6 else 1.0))))
    assert row(run, "+v").values["roofs_left_out"] == left_out


def test_where_no_turn_was_steady_all_are_used_and_the_row_says_so(tmp_path: Path) -> None:
    run = roofed(store(tmp_path), lambda r: (reading(33.0), reading(55.0)))
    found = row(run, "+v").values
    assert (found["roof_share"].n, found["roofs_left_out"], found["roofs_steady"]) == (12, 0, False)
    assert found["roof_share"].mid == pytest.approx(0.5, rel=0.01)
    assert any("the share of the roof is a rough one" in note for note in table(run).notes)
    assert not any("roofs next to the others" in sentence for sentence in table(run).methods)
