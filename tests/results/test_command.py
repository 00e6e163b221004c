"""The command of a row, read back by the room that reads commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ktbench.config import compose, freeze
from ktbench.results.command import command_of
from ktbench.spec.engine import EngineSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.run_spec import MeasureSpec, RunSpec
from ktbench.spec.wire import spec_id, to_plain
from tests.report.synthetic import Store
from tests.sim.testbed import testbed


def planned(*overrides: str) -> RunSpec:
    (part,) = freeze(compose(overrides)).parts
    return part.spec


def read_back(command: str) -> RunSpec:
    assert command.startswith("python -m ktbench run ")
    return planned(*shlex.split(command)[4:])


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.layers=4"],
        ["model.layers=4", "model.vocab=full", "model.seed=7"],
        ["model=mixtral_8x7b", "workload=prefill", "workload.prompt=32", "workload.batch=3", "workload.routing=zipf"],
        ["engine.avx512=true", "engine.dynamic=true", "engine.deferral=3", "engine.threads=2", "measure.max_rounds=7"],
        ["model.layers=2", "engine.avx512=true", "engine.amx=true", "engine.amx_min_tokens=5", "workload.seed=4"],
        ["model.layers=2", "engine.amx=true", "engine.amx_min_tokens=8", "workload.seed=3", "measure.goal=0.1"],
        ["workload=layer", "workload.batch=64", "workload.active_experts=8", "precision=int8", "engine.amx=true"],
        [
            "workload=layer",
            "model.experts=16",
            "precision=int4_g64",
            "engine.avx512=true",
            "engine.numa=true",
            "engine.domains=2",
        ],
        ["workload=layer", "workload.routing=recorded", "workload.trace=traces/a b.npz", "measure.tolerance=0.5"],
        ["engine.avx512=true", "engine.packed_dense=true", "device_precision=int4_g32", "engine.deferral=auto"],
        ["engine.roles=split", "engine.device_threads=1", "engine.defer_prefill=true"],
        ["workload.batch=4", "workload.shortest=16", "workload.chunk=32"],
        ["engine.roles=split", "engine.placement={policy:dynamic,ratio:0.25,every:4,seed:3}"],
        [
            "engine.roles=split",
            "engine.placement.policy=frequency",
            "engine.placement.ratio=0.5",
            "engine.placement.profile=profiles/a b.npz",
        ],
        ["inject=experts"],
        ["system=llama.cpp", "precision=q4_0", "device_precision=q4_0", "peer.python=envs/a b/bin/python"],
        ["system=transformers", "peer.implementation=eager", "workload=prefill"],
        ["system=kt-kernel", "workload=layer", "precision=int8", "peer.tune_s=0.5"],
        ["machine=paper_a100"],
        ["machine=paper_a100", "machine.read_gb_per_s=300", "machine.cores=48", "engine.avx512=true"],
        ["machine=paper_a100", "engine.device=cpu", "engine.avx512=true", "engine.packed_dense=true"],
        ["machine=paper_4080", "machine.calibration=ktbench", "workload=prefill"],
        ["machine=paper_a100", "workload=layer", "workload.batch=64"],
        ["machine=paper_a100", "workload.routing=recorded", "workload.trace=traces/a b.npz"],
    ],
)
def test_gives_the_same_spec_again(overrides: list[str]) -> None:
    spec = planned(*overrides)
    assert read_back(command_of(spec)) == spec


def test_facts_of_an_architecture_are_taken_over() -> None:
    words = ["python", "-m", "ktbench", "sweep", "+ablation=decode", "model.layers=4", "model.config.num_experts=16"]
    spec = planned(*words[4:])
    assert spec_id(read_back(command_of(spec, words))) == spec_id(spec)


def test_rules_of_a_file_are_taken_over_and_shipped_ones_named() -> None:
    rules = InjectSpec(name="mine", rules=(InjectRule(name="all", operator="linear", class_name="Linear"),))
    spec = replace(Store().cells()[0].spec, inject=rules)
    words = ["python", "-m", "ktbench", "run", "inject.file=my rules.yaml", "inject.show=true"]
    command = command_of(spec, words)
    assert "'inject.file=my rules.yaml'" in command
    assert "inject=" not in command and "inject.show" not in command
    assert "inject=lean" in command_of(replace(spec, inject=InjectSpec(name="lean")))


def test_a_checkpoint_is_named_by_its_folder_and_quoted() -> None:
    spec = Store().cells()[0].spec
    command = command_of(replace(spec, model=replace(spec.model, path="my models/tiny")))
    assert "'model.path=my models/tiny'" in command
    assert "model.layers" not in command


def test_defaults_are_not_repeated(tmp_path: Path) -> None:
    command = command_of(Store().cells()[0].spec)
    assert "engine." not in command and "measure." not in command
    changed = replace(Store().cells()[0].spec, engine=EngineSpec(avx512=True), measure=MeasureSpec(goal=0.2))
    assert command_of(changed).endswith("engine.avx512=true measure.goal=0.2")


def test_where_peers_are_is_said_of_peers_alone() -> None:
    assert "peer." not in command_of(planned("peer.python=elsewhere/python", "engine.avx512=true"))
    assert "system=llama.cpp peer.python=elsewhere/python" in command_of(
        planned("peer.python=elsewhere/python", "system=llama.cpp")
    )


def test_how_long_to_measure_does_not_matter_to_a_simulated_cell() -> None:
    assert "measure." not in command_of(planned("machine=paper_a100", "measure.max_rounds=7"))


def test_a_machine_of_ones_own_is_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "my box.yaml"
    file.write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "mine"}))
    words = ["python", "-m", "ktbench", "sweep", f"machine={file}", "machine.cores=4"]
    spec = planned(*words[4:])
    assert read_back(command_of(spec, words)) == spec
