"""Rows of runs written here, and of runs kept from real hardware, whose numbers stay what they were."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path
from statistics import median

import pytest

from ktbench.report.terminal import row_line
from ktbench.resources import data_folder
from ktbench.results import Run, read_run
from ktbench.results.row import Row, falls_of, groups_of
from ktbench.results.rows import rows_of
from ktbench.results.speedups import Verdict
from ktbench.spec.record import Outcome, Record
from ktbench.spec.run_spec import MeasureSpec
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.synthetic import DECODE, NO_NUMA, Arm, Store

PAIR = (Arm(label="base", step_ms=100.0), Arm(label="+v", step_ms=50.0))

UNWATCHED = {"energy", "peak"}  # of which records made here say nothing


def row(rows: tuple[Row, ...], label: str) -> Row:
    return next(row for row in rows if row.label == label)


def changed(run: Run, label: str, **changes: object) -> Run:
    """The run with fields of one cell's records replaced."""
    return replace(
        run,
        records=tuple(replace(r, **changes) if r.label == label else r for r in run.records),  # type: ignore[arg-type]
    )


def again(run: Run, label: str, round_number: int, **changes: object) -> Run:
    """The run with one record written once more, changed, as resuming does."""
    old = next(r for r in run.records if r.label == label and r.round == round_number)
    return replace(run, records=(*run.records, replace(old, **changes)))  # type: ignore[arg-type]


def test_speed_follows_from_the_samples(tmp_path: Path) -> None:
    run = Store(arms=PAIR, steps=3, drift=0.02).write(tmp_path)
    medians = sorted(median(r.samples_s) for r in run.records if r.label == "+v")
    found = row(rows_of(run), "+v")
    assert found.outcome is Outcome.OK
    assert found.step_s is not None and found.tokens_per_s is not None
    assert (found.step_s.low, found.step_s.high) == (medians[2], medians[9])
    assert found.step_s.mid == pytest.approx((medians[5] + medians[6]) / 2)
    assert found.tokens_per_s.mid == pytest.approx(1 / found.step_s.mid)
    assert found.read_bytes_per_s == pytest.approx(1.1e9 / found.step_s.mid)
    assert found.flops_per_s == pytest.approx(0.9e9 / found.step_s.mid)
    assert (found.rounds, found.samples) == (12, 36)
    assert set(found.missing) == UNWATCHED


def test_prefill_counts_the_prompts_tokens(tmp_path: Path) -> None:
    found = rows_of(Store(arms=PAIR, phase="prefill", prompts=(512,)).write(tmp_path))[0]
    assert found.step_s is not None and found.tokens_per_s is not None
    assert found.tokens_per_s.mid == pytest.approx(512 / found.step_s.mid)


def test_speedup_is_formed_inside_rounds(tmp_path: Path) -> None:
    """A machine that drifts by half leaves times wide and ratios sharp."""
    arms = (Arm(label="base", step_ms=100.0, noise=0.0), Arm(label="+v", step_ms=50.0, noise=0.0))
    found = row(rows_of(Store(arms=arms, drift=0.5, steps=1).write(tmp_path)), "+v")
    assert found.speedup is not None and found.step_s is not None
    assert found.step_s.half_width > 0.2
    assert found.speedup.low == pytest.approx(2.0, rel=0.01)
    assert found.speedup.high == pytest.approx(2.0, rel=0.01)
    assert found.verdict is Verdict.FASTER


def test_each_group_has_its_own_baseline(tmp_path: Path) -> None:
    run = Store(arms=PAIR, prompts=(32, 512), phase="prefill").write(tmp_path)
    rows = rows_of(run)
    groups = groups_of(rows)
    assert [[r.label for r in group] for group in groups] == [["base", "+v", "base (A/A)"]] * 2
    for group in groups:
        base, fast, control = group
        assert fast.speedup and control.speedup
        ratios, equal = (sorted(base.round_s[n] / row.round_s[n] for n in range(12)) for row in (fast, control))
        assert (control.speedup.low, control.speedup.high) == (equal[2], equal[9])
        middle = median(ratios)
        below = hypot(log(middle / ratios[2]), max(log(equal[9]), 0))
        above = hypot(log(ratios[9] / middle), max(-log(equal[2]), 0))
        assert (fast.speedup.low, fast.speedup.high) == pytest.approx((middle * exp(-below), middle * exp(above)))


def test_gain_is_over_the_row_without_the_last_feature(tmp_path: Path) -> None:
    arms = tuple(Arm(label=label, step_ms=ms) for label, ms in (("base", 100), ("+v", 50), ("+m", 40), ("+v+d", 25)))
    rows = rows_of(Store(arms=arms).write(tmp_path))
    gains = {r.label: r.gain and (r.gain.over, round(r.gain.ratio.mid, 1), r.gain.verdict) for r in rows}
    assert gains == {
        "base": None,
        "+v": ("base", 2.0, Verdict.FASTER),
        "+m": ("base", 2.5, Verdict.FASTER),
        "+v+d": ("+v", 2.0, Verdict.FASTER),
        "base (A/A)": None,
    }


def test_the_control_is_compared_and_called_no_faster(tmp_path: Path) -> None:
    control = row(rows_of(Store(arms=PAIR).write(tmp_path)), "base (A/A)")
    assert control.role == "control"
    assert not control.is_baseline
    assert control.speedup is not None and control.speedup.mid == pytest.approx(1, abs=0.02)
    assert control.verdict in (Verdict.SAME, Verdict.UNSURE)


def test_a_control_that_differs_takes_small_differences_away(tmp_path: Path) -> None:
    arms = (Arm(label="base", step_ms=100.0, noise=0.001), Arm(label="+v", step_ms=95.0, noise=0.001))
    run = Store(arms=arms).write(tmp_path)
    assert row(rows_of(run), "+v").verdict is Verdict.FASTER
    moved = tuple(
        replace(r, samples_s=tuple(s * 0.9 for s in r.samples_s)) if r.label == "base (A/A)" else r for r in run.records
    )
    rows = rows_of(replace(run, records=moved))
    assert row(rows, "base (A/A)").verdict is Verdict.FASTER
    assert row(rows, "+v").verdict is Verdict.UNSURE


def test_an_interval_that_stays_open_is_noisy_and_still_shown(tmp_path: Path) -> None:
    arms = (PAIR[0], Arm(label="+v", step_ms=50.0, noise=0.3))
    found = row(rows_of(Store(arms=arms).write(tmp_path)), "+v")
    assert found.outcome is Outcome.NOISY
    assert found.timed and found.speedup is not None
    assert found.why.startswith("the interval stayed at ±") and found.why.endswith("the goal was ±5.0%")


def test_fewer_than_six_rounds_are_noisy(tmp_path: Path) -> None:
    found = rows_of(Store(arms=PAIR, rounds=3).write(tmp_path))[1]
    assert (found.outcome, found.why) == (Outcome.NOISY, "3 rounds of the 6 that an interval of 95% needs")
    assert found.verdict is Verdict.UNSURE


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.timed])
def test_one_failed_round_takes_the_speed_away(tmp_path: Path, outcome: Outcome) -> None:
    arms = (*PAIR, Arm(label="+m", outcome=outcome, why="because", fails_at=7))
    found = row(rows_of(Store(arms=arms).write(tmp_path)), "+m")
    assert (found.outcome, found.why) == (outcome, "because")
    assert (found.step_s, found.tokens_per_s, found.speedup, found.gain, found.values) == (*(None,) * 4, {})
    assert found.round_s == {}
    assert found.missing == {"step_s": f"{outcome}: because"}
    assert found.why_no("speedup") == found.why_no("roof") == f"{outcome}: because"
    assert found.rounds == 7


def test_the_last_record_of_a_round_counts(tmp_path: Path) -> None:
    run = Store(arms=PAIR, steps=1).write(tmp_path)
    failed = again(run, "+v", 3, outcome=Outcome.CRASHED, samples_s=(), why="signal 9")
    assert row(rows_of(failed), "+v").outcome is Outcome.CRASHED
    repeated = again(failed, "+v", 3)
    assert rows_of(repeated) == rows_of(run)


def test_without_a_baseline_nothing_is_compared(tmp_path: Path) -> None:
    arms = (Arm(label="base", outcome=Outcome.WRONG, why="zeros"), PAIR[1])
    found = row(rows_of(Store(arms=arms).write(tmp_path)), "+v")
    assert found.timed and found.speedup is None
    assert found.missing["speedup"] == "base is WRONG: zeros"
    elsewhere = Store(arms=PAIR).write(tmp_path / "b")
    parts = tuple(replace(part, baseline="+m") for part in elsewhere.header.parts)
    rows = rows_of(replace(elsewhere, header=replace(elsewhere.header, parts=parts)))
    assert rows[0].missing["speedup"] == "no cell +m was planned at these settings"


def test_a_cell_without_a_turn_is_not_measured(tmp_path: Path) -> None:
    run = Store(arms=PAIR).write(tmp_path)
    found = row(rows_of(replace(run, records=tuple(r for r in run.records if r.label != "+v"))), "+v")
    assert (found.outcome, found.why, found.provenance) == (None, "no trial yet", None)


def test_what_a_system_does_not_say_is_missing_with_its_reason(tmp_path: Path) -> None:
    stored = Store(arms=PAIR, ping_pong_ns=(None,)).write(tmp_path)
    run = changed(stored, "+v", work=None, roofs=(), evidence=(), error=None)
    found = row(rows_of(run), "+v")
    assert found.timed
    assert set(found.missing) == {"read_bytes_per_s", "flops_per_s", "roof", "evidence", "error"} | UNWATCHED
    assert all(found.missing.values())


def test_evidence_is_counted_per_step(tmp_path: Path) -> None:
    rows = rows_of(Store(arms=DECODE).write(tmp_path))
    assert row(rows, "base").evidence == "none requested, none seen"
    assert row(rows, "+v+d").evidence == "avx512_calls 128/step, tasks_dynamic 128/step"


@pytest.mark.parametrize(
    ("read", "peak", "limit", "share"),
    [
        (22e9, 9e12, "read", 0.5),  # 1.1 GB in 100 ms at least 50 ms
        (110e9, 12e9, "arithmetic", 0.75),  # 0.9 GFLOP at least 75 ms
        (22e9, None, "read", 0.5),
    ],
)
def test_the_nearer_roof_decides(tmp_path: Path, read: float, peak: float | None, limit: str, share: float) -> None:
    run = Store(arms=(Arm(label="base", step_ms=100.0, noise=0.0),), drift=0.0, control=False).write(tmp_path)

    def under(record: Record) -> Record:
        roofs = tuple(replace(roof, read_bytes_per_s=read, peak_flops=peak) for roof in record.roofs)
        return replace(record, roofs=roofs)

    found = rows_of(replace(run, records=tuple(map(under, run.records))))[0]
    assert found.values["nearer_roof"] == limit
    assert found.values["roof_share"].mid == pytest.approx(share, rel=0.01)


def test_a_share_of_the_roof_is_over_the_trials_of_the_time(tmp_path: Path) -> None:
    """Where the roofs of slow trials are unsteady, those of the others alone would say that the cell is fast."""
    run = Store(arms=(Arm(label="base", step_ms=100.0, noise=0.0),), drift=0.0, control=False).write(tmp_path)

    def slow(record: Record) -> Record:
        if record.round % 3 == 0:
            return record
        before, after = record.roofs
        roofs = (before, replace(after, read_bytes_per_s=3 * after.read_bytes_per_s))
        return replace(record, samples_s=tuple(2 * s for s in record.samples_s), roofs=roofs)

    (still,), (found,) = rows_of(run), rows_of(replace(run, records=tuple(map(slow, run.records))))
    assert still.step_s and found.step_s
    assert found.step_s.mid == pytest.approx(2 * still.step_s.mid, rel=0.01)
    assert found.values["roof_share"].mid == pytest.approx(still.values["roof_share"].mid / 2, rel=0.01)
    assert (found.values["roof_share"].n, found.values["roofs_left_out"], found.values["roofs_steady"]) == (12, 8, True)


def test_the_whole_model_s_speed_is_extrapolated_from_a_measured_slice(tmp_path: Path) -> None:
    """Four of 48 layers, with as much of the output head: a step of all takes twelve times as long."""
    for found in rows_of(Store(arms=PAIR).write(tmp_path)):
        assert found.spec.model.depth == "4 of 48 layers"
        assert found.tokens_per_s and found.whole_tokens_per_s
        assert found.whole_tokens_per_s.mid == pytest.approx(found.tokens_per_s.mid / 12)
        assert "4/48 layers" in row_line(found)


def test_records_of_two_provenances_are_refused(tmp_path: Path) -> None:
    run = Store(arms=PAIR).write(tmp_path)
    with pytest.raises(ValueError, match="mixes measured and simulated records"):
        rows_of(again(run, "+v", 12 - 1, round=12, provenance="simulated"))


def test_error_is_the_largest_of_all_rounds_or_that_of_the_one_that_failed(tmp_path: Path) -> None:
    run = again(Store(arms=PAIR).write(tmp_path), "+v", 4, error=0.009)
    assert row(rows_of(run), "+v").error == 0.009
    wrong = again(run, "+v", 5, outcome=Outcome.WRONG, samples_s=(), error=0.5)
    assert row(rows_of(wrong), "+v").error == 0.5
    crashed = again(run, "+v", 5, outcome=Outcome.CRASHED, samples_s=(), error=None)
    assert row(rows_of(crashed), "+v").error is None


def test_row_lines_fit_one_line_and_align(tmp_path: Path) -> None:
    measure = MeasureSpec(goal=0.02)
    arms = (*DECODE[:3], Arm(label="+v+d", step_ms=9.9, noise=0.1), *DECODE[4:])
    lines = [row_line(r) for r in rows_of(Store(arms=arms, measure=measure).write(tmp_path))]
    timed = [line for line in lines if "ms/step" in line]
    assert len(timed) == 5
    assert len({line.index("ms/step") for line in timed}) == len({line.index("tokens/s") for line in timed}) == 1
    assert len({len(line) for line in timed}) == 1
    assert "~" in timed[3]
    assert lines[4] == f"{'+v+d+n':<16} UNSUPPORTED: {NO_NUMA}"
    assert not any("\n" in line for line in lines)


RECORDED = sorted(log.parent for log in data_folder("reports").glob("recorded/*/*/log.jsonl"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_planned_cell_has_a_speed_or_a_reason(folder: Path) -> None:
    for row in rows_of(read_run(folder)):
        assert row.provenance == "measured"
        assert row.timed or row.why


def test_the_speed_ups_that_the_readme_shows() -> None:
    (decode,) = (folder for folder in RECORDED if folder.name == "decode")
    shown = {row.label: row.speedup.mid for row in rows_of(read_run(decode)) if row.speedup}
    readme = (data_folder("reports").parent / "README.md").read_text()
    for label in ("+v", "+m", "+v+d"):
        assert f"{shown[label]:.3f}x" in readme


def test_throughput_that_falls_is_found(tmp_path: Path) -> None:
    """int8 at 25 tokens takes as long as 31 should: a fall from 24's that no later point mends; bf16 never falls."""
    arms = (LayerArm(label="+v+d", share=0.9, noise=0.0), LayerArm(label="+v+d int8", share=0.9, noise=0.0))
    part = LayerPart(arms=arms, tokens=(1, 24, 25, 26, 128), control=False)
    run = LayerStore(parts=(part,), rounds=6, peaks={("avx512", "bf16"): 9e9, ("avx512", "int8"): 9e9}).write(tmp_path)
    slow = {cell.key for cell in run.header.cells if cell.label == "+v+d int8" and cell.spec.tokens_per_expert == 25}
    hurt = [replace(r, samples_s=tuple(1.25 * s for s in r.samples_s)) if r.cell in slow else r for r in run.records]
    assert not [*falls_of(rows_of(run))]
    ((fall, best),) = falls_of(rows_of(replace(run, records=tuple(hurt))))
    assert (fall.label, fall.spec.tokens_per_expert, best.spec.tokens_per_expert) == ("+v+d int8", 25, 24)
