"""What trainings learned over seeds: means and paired differences, held against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import pytest

from ktbench.results.rows import rows_of
from ktbench.results.training.learning import Learned, learned_of
from tests.report.learned import ALIKE, BASE, BROKEN, STEPS, WORSE, LearningStore, Taught, losses
from tests.report.synthetic import Store

T_2 = 4.302653  # quantile of Student's t at 97.5 % with two degrees of freedom, of a table


def learned(folder: Path, *arms: Taught) -> dict[str, Learned]:
    return {one.shown: one for one in learned_of(rows_of(LearningStore(arms=arms).write(folder)))}


def test_differences_are_paired_over_seeds(tmp_path: Path) -> None:
    found = learned(tmp_path, BASE, ALIKE, WORSE)
    assert [*found] == ["base", "+v+d int8", "+v+d int4_g32"]
    worse = [0.40 - 0.30, 0.45 - 0.34, 0.42 - 0.32]
    score = found["+v+d int4_g32"].scores["held_out_loss"]
    assert (score.before, score.after.mid) == (8.5, pytest.approx(mean([0.40, 0.45, 0.42])))
    assert score.difference is not None
    assert score.difference.mid == pytest.approx(mean(worse))
    assert score.difference.high == pytest.approx(mean(worse) + T_2 * stdev(worse) / sqrt(3))
    assert score.difference.low == pytest.approx(mean(worse) - T_2 * stdev(worse) / sqrt(3))
    assert score.is_apart
    assert found["+v+d int4_g32"].scores["exact"].is_apart


def test_what_seeds_may_differ_by_is_no_difference(tmp_path: Path) -> None:
    found = learned(tmp_path, BASE, ALIKE)
    score = found["+v+d int8"].scores["held_out_loss"]
    assert score.difference is not None and score.difference.mid == pytest.approx(0.0, abs=1e-12)
    assert not score.is_apart
    base = found["base"].scores["held_out_loss"]
    assert (base.difference, base.is_apart) == (None, False)


def test_curves_have_the_spread_over_seeds_and_the_paired_differences(tmp_path: Path) -> None:
    found = learned(tmp_path, BASE, WORSE)
    of_base, of_worse = ([[*losses(arm, seed)] for seed in BASE.after] for arm in (BASE, WORSE))
    last = [curve[-1] for curve in of_base]
    curve, apart = found["base"].losses, found["+v+d int4_g32"].apart
    assert len(curve) == len(apart) == STEPS
    assert (curve[-1].low, curve[-1].mid, curve[-1].high) == (min(last), pytest.approx(mean(last)), max(last))
    differences = [other[4] - one[4] for one, other in zip(of_base, of_worse, strict=True)]
    assert (apart[4].low, apart[4].mid) == (pytest.approx(min(differences)), pytest.approx(mean(differences)))
    assert found["base"].apart == ()


def test_a_training_that_failed_is_left_out_of_both_sides_with_its_reason(tmp_path: Path) -> None:
    broken = learned(tmp_path, BASE, BROKEN)["+v+d"]
    assert [*broken.trainings] == [0, 1]
    score = broken.scores["held_out_loss"]
    assert score.difference is not None
    assert (score.after.n, score.difference.n) == (2, 2)
    assert score.difference.mid == pytest.approx(0.0, abs=1e-12)
    assert broken.why == "WRONG: the loss of training step 7 is nan"


def test_nothing_ended_well_or_no_baseline(tmp_path: Path) -> None:
    nothing = replace(BROKEN, fails=dict.fromkeys(BASE.after, "killed"))
    found = learned(tmp_path / "one", BASE, nothing)["+v+d"]
    assert (found.scores, found.losses, found.apart) == ({}, (), ())
    lost = replace(BASE, fails=dict.fromkeys(BASE.after, "killed"))
    alone = learned(tmp_path / "two", lost, ALIKE)["+v+d int8"]
    assert alone.scores["exact"].difference is None and alone.apart == ()


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    arms = [replace(arm, after={0: arm.after[0]}) for arm in (BASE, WORSE)]
    score = learned(tmp_path, *arms)["+v+d int4_g32"].scores["exact"]
    assert score.difference is not None
    assert score.difference.mid == pytest.approx(-0.15)
    assert (score.difference.low, score.is_apart) == (None, False)


def test_steps_on_random_tokens_teach_nothing(tmp_path: Path) -> None:
    assert learned_of(rows_of(Store(rounds=1).write(tmp_path))) == ()
