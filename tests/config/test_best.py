"""The best features of a machine, by one word for every verb."""

from __future__ import annotations

import pytest

from ktbench.cli.help import help_text
from ktbench.run.feasibility import best_engine
from ktbench.run.request import cells_of, read_request
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.support import rules_broken

TINY = ("model=tiny", "model.layers=2")
HERE = best_engine(EngineSpec(device="cpu"), None, "decode").label


def labels(*words: str) -> list[str]:
    return [cell.label for cell in cells_of(read_request([*TINY, *words]))]


@pytest.mark.parametrize("phase", ["decode", "prefill", "layer", "train", "serve"])
def test_a_cell_has_every_feature_of_its_machine_that_its_phase_takes(phase: str) -> None:
    tiny = TINY[:1] if phase == "layer" else TINY
    for machine in ("machine=paper_a100", "machine=here"):
        (part,) = read_request([*tiny, f"workload={phase}", machine, "engine.best=true"]).parts
        assert part.spec.engine.fused
        assert part.spec.machine is not None or not [*rules_broken(part.spec)]


def test_a_list_of_values_is_an_axis_of_the_best_arm() -> None:
    assert labels("engine.best=true", "workload.prompt=8,16")[:2] == [HERE, f"{HERE} (A/A)"]


def test_features_that_the_command_line_names_are_as_it_names_them() -> None:
    assert labels("machine=paper_a100", "engine.best=true", "engine.dynamic=false", "engine.deferral=1") == [
        "+v+m+n+c deferral=1"
    ]


def test_an_arm_is_the_best_features_too() -> None:
    arms = ("sweep.arms=[base,best,'best deferral=1','best int8']", "machine=paper_a100")
    assert labels(*arms) == ["base", "+v+m+d+n+c", "+v+m+d+n+c deferral=1", "+v+m+d+n+c int8"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["engine.best=often"], "engine.best=often: allowed are true and false"),
        (["engine.best=true", "+ablation=decode"], r"sweep\.arms=\[base,best\]"),
        (["engine.best=true", "machine=paper_a100,paper_4080"], "machine is varied, run once for each value"),
        (["sweep.arms=[base,best]", "engine.device=cpu,cuda"], "engine.device is varied"),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_request([*TINY, *words])


@pytest.mark.parametrize("verb", ["plan", "run", "sweep", "eval", "serve", "chat", "trace", "record"])
def test_help_has_it(verb: str) -> None:
    assert "engine.best=false" in help_text(verb, "")
