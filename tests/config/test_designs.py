"""Designs as a command line gives them: arms, title and figure, and what is refused in one line."""

from __future__ import annotations

import pytest

from ktbench.config import compose, freeze
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import SweepSpec


def sweep(*overrides: str) -> SweepSpec:
    (part,) = freeze(compose(["model=tiny", "model.layers=null", *overrides])).parts
    return part.sweep


def test_a_design_makes_arms_title_and_figure() -> None:
    found = sweep("sweep.design=factorial", "sweep.features=[+v,+d]")
    assert found.arms == ("base", "+v", "+v+d") and [one.arm for one in found.dropped] == ["+d"]
    assert (found.title, found.figure) == ("+v, +d: factorial", "interactions")
    assert sweep("sweep.design=ladder", "sweep.features=[+v]", "sweep.figure=latency").figure == "latency"


def test_the_ablation_takes_other_features_and_another_design() -> None:
    usual = sweep("+ablation=interactions")
    assert len(usual.arms) == 10 and usual.arms[-1] == "+v+d+l deferral=3"
    loo = sweep("+ablation=interactions", "sweep.design=leave_one_out", "sweep.baseline=+v", "sweep.features=[+d,+l]")
    assert loo.arms == ("+v", "+v+d+l", "+v+l", "+v+d")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sweep.features=[+v]",), "needs sweep.design"),
        (("sweep.design=ladder",), "needs sweep.features"),
        (("sweep.design=ladders", "sweep.features=[+v]"), "sweep.design: .*allowed are ladder, leave_one_out"),
        (("sweep.design=ladder", "sweep.features=+v"), "sweep.features: expected array"),
        (("sweep.design=ladder", "sweep.features=[+v,1]"), "sweep.features"),
        (("+ablation=decode", "sweep.design=ladder", "sweep.features=[+v]"), r"set sweep.arms=\[\]"),
        (
            ("sweep.design=factorial", "sweep.features=[+v,+d]", "engine.avx512=true,false"),
            "engine.avx512: is set by the arms",
        ),
    ],
)
def test_what_makes_no_design_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        sweep(*words)
    assert "\n" not in str(refused.value)
