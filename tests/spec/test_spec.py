"""Specs refuse wrong values, survive a round trip, and have stable ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.spec.engine import EngineSpec
from ktbench.spec.record import Outcome, Record
from ktbench.spec.run_spec import MeasureSpec, ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.wire import from_plain, spec_id, to_plain
from tests.tiny import CONFIG, tiny_spec


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: tiny_spec(avx512=True, deferral=3), "engine.deferral=3: tiny has top_k=2 experts a token"),
        (lambda: tiny_spec(skipping=3), "allowed are 0 to 2"),
        (lambda: EngineSpec(handover="flags", device="cuda"), "engine.handover=flags: "),
        (lambda: EngineSpec(dynamic=True), "needs engine.avx2=true or engine.avx512=true or engine.amx=true"),
        (lambda: EngineSpec(deferral=-1), "engine.deferral=-1: must be at least 0"),
        (lambda: EngineSpec(deferral=1, skipping=1), "exclude each other"),
        (lambda: EngineSpec(threads=0), "engine.threads=0: must be at least 1"),
        (lambda: WorkloadSpec(phase="decode", prompt=0, steps=1), "workload.prompt=0"),
        (lambda: MeasureSpec(min_rounds=8, max_rounds=6), "measure.max_rounds=6: must be at least 8"),
        (lambda: MeasureSpec(goal=0), "measure.goal=0: must be above 0"),
        (
            lambda: ModelSpec(name="m", config=CONFIG | {"num_hidden_layers": 0}, full_layers=2, full_vocab=256),
            "num_hidden_layers=0: allowed are 1 to 512",
        ),
        (
            lambda: ModelSpec(name="m", config=CONFIG | {"first_k_dense_replace": 2}, full_layers=2, full_vocab=256),
            "has its first MoE layer at 3",
        ),
        (
            lambda: ModelSpec(name="m", config={"hidden_size": 4}, full_layers=2, full_vocab=256),
            "is not a Hugging Face configuration",
        ),
    ],
)
def test_wrong_value_is_refused_with_what_to_change(build: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()


def test_specs_survive_json() -> None:
    spec = tiny_spec(avx512=True, dynamic=True, deferral=1)
    assert from_plain(to_plain(spec), RunSpec) == spec


def test_wrong_type_is_named_with_its_path() -> None:
    content = to_plain(tiny_spec())
    content["engine"]["deferral"] = "many"
    with pytest.raises(ValueError, match="engine.deferral: invalid enum value 'many'; allowed are any integer, auto"):
        from_plain(content, RunSpec)


def test_id_depends_on_what_is_asked_and_on_nothing_else() -> None:
    spec = tiny_spec()
    same = replace(spec, model=replace(spec.model, name="another label"), measure=MeasureSpec(max_rounds=99))
    assert spec_id(same) == spec_id(spec)
    others = [
        replace(spec, engine=EngineSpec(avx512=True)),
        replace(spec, workload=replace(spec.workload, batch=2)),
        replace(spec, model=replace(spec.model, seed=1)),
    ]
    assert len({spec_id(other) for other in [spec, *others]}) == 4


@pytest.mark.parametrize(("outcome", "samples_s"), [(Outcome.WRONG, (0.1,)), (Outcome.OK, ()), (Outcome.IDLE, (1.0,))])
def test_performance_without_a_passed_check_cannot_be_represented(
    outcome: Outcome, samples_s: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match="samples"):
        Record(
            cell="c", label="base", round=0, outcome=outcome, samples_s=samples_s, provenance="measured",
            code_id="", env_id="", worker_session="", started="",
        )  # fmt: skip
