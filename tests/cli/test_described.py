"""What a machine of paper could not run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.cli.described import lacking_there
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import expert_bytes
from ktbench.spec.wire import spec_id
from tests.sim.testbed import cell_on, testbed
from tests.tiny import tiny_cell, tiny_spec

HOST_ONLY = testbed(gpu=None)
SPEC = cell_on(testbed(), device="cuda")
EXPERTS = 4 * 64  # of all layers
BF16_GIB = EXPERTS * expert_bytes(SPEC.model.shape, "bf16") / 2**30
INT4_GIB = EXPERTS * expert_bytes(SPEC.model.shape, "int4_g32") / 2**30
DEVICE_GIB = 2 * SPEC.model.shape.other_params / 2**30


def why(spec: RunSpec) -> str:
    cell = Cell(label=spec.label, spec=spec, spec_id=spec_id(spec))
    return lacking_there([cell]).get(cell.key, "")


def on(machine: MachineSpec, **engine: Any) -> str:
    return why(cell_on(machine, **engine))


def changed(spec: RunSpec, **changes: Any) -> str:
    return why(replace(spec, **changes))


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        cell_on(testbed(), device="cuda", amx=True, numa=True, cuda_graph=True),
        cell_on(HOST_ONLY, packed_dense=True),
        cell_on(HOST_ONLY, roles="split", device_threads=30, deferral=3),
        cell_on(testbed(domains=1), device="cuda", numa=True, domains=2),
        cell_on(testbed(), device="cuda", avx512=False, dynamic=False),
    ],
)
def test_what_the_machine_has_it_can_run(spec: RunSpec) -> None:
    assert why(spec) == ""


@pytest.mark.parametrize(
    ("machine", "engine", "said"),
    [
        (testbed(vector="avx2"), {"device": "cuda"}, "+v: testbed has no AVX-512"),
        (testbed(amx_tflops=None, amx_int8_tops=None), {"device": "cuda", "amx": True}, "+m: testbed has no AMX"),
        (testbed(domains=1), {"device": "cuda", "numa": True}, "+n: testbed has one NUMA domain"),
        (HOST_ONLY, {"device": "cuda"}, "engine.device=cuda: testbed has no GPU"),
        (HOST_ONLY, {"cuda_graph": True}, "+c: testbed has no GPU"),
        (
            testbed(),
            {"device": "cuda", "packed_dense": True},
            "+l: with engine.device=cuda the linear layers are PyTorch's",
        ),
        (testbed(), {"device": "cpu"}, "engine.device=cpu: testbed is simulated with its GPU, leave engine.device out"),
        (HOST_ONLY, {"threads": 73}, "engine.threads=73: allowed are 1 to 72"),
    ],
)
def test_what_it_lacks_is_named(machine: MachineSpec, engine: dict[str, Any], said: str) -> None:
    assert on(machine, **engine).startswith(said)


@pytest.mark.parametrize("system", ["llama.cpp", "transformers", "kt-kernel", "fiddler"])
def test_other_systems_are_not_simulated(system: str) -> None:
    spec = replace(tiny_spec(system=system), machine=testbed())
    assert why(spec) == f"{system} is not simulated; its published numbers are shown where there are any"


def test_experts_have_to_fit_in_the_memory_of_all_domains_in_their_precision() -> None:
    tight = testbed(memory_gib=(BF16_GIB + INT4_GIB) / 4)
    assert on(tight, device="cuda") == (
        f"its weights take {BF16_GIB:.1f} GiB, testbed has {(BF16_GIB + INT4_GIB) / 2:.1f} GiB of memory"
    )
    spec = cell_on(tight, device="cuda")
    assert changed(spec, precision="int4_g32") == ""
    base = replace(spec.engine, avx512=False, dynamic=False)
    assert "its weights take" in why(replace(spec, engine=base))
    assert on(testbed(memory_gib=BF16_GIB / 2 * 1.001), device="cuda") == ""
    # Without a GPU all weights are in that memory.
    assert "its weights take" in on(testbed(memory_gib=BF16_GIB / 2 * 1.001, gpu=None))


def test_weights_of_the_device_have_to_fit_on_all_gpus() -> None:
    small = testbed(gpu_memory_gib=DEVICE_GIB * 0.9)
    assert on(small, device="cuda").startswith(f"the weights of the device role take {DEVICE_GIB:.1f} GiB in bf16, ")
    assert changed(cell_on(small, device="cuda"), device_precision="int8") == ""
    assert on(replace(small, gpus=2), device="cuda") == ""


def test_experts_that_live_with_the_device_take_room_there() -> None:
    engine: dict[str, Any] = {"device": "cuda", "placement": PlacementSpec(policy="uniform", ratio=0.5)}
    half = testbed(memory_gib=BF16_GIB / 4 * 1.001, gpu_memory_gib=DEVICE_GIB + BF16_GIB / 2 * 1.001)
    assert on(half, **engine) == ""
    assert on(replace(half, gpu_memory_gib=DEVICE_GIB + BF16_GIB / 2 * 0.99), **engine).endswith("of GPU memory")
    assert on(half, device="cuda").endswith("of memory")


def test_a_graph_in_prefill_is_simulated_as_the_paper_measured_it() -> None:
    assert on(testbed(), device="cuda", cuda_graph=True, phase="prefill") == ""


def test_the_experts_of_a_layer_run_on_the_host_of_any_machine() -> None:
    spec = tiny_spec(phase="layer", avx512=True, device="cuda")
    assert why(replace(spec, machine=testbed(gpu_memory_gib=1e-6))) == ""
    assert "workload.phase=layer" in why(replace(tiny_spec(phase="layer", avx512=True, skipping=1), machine=testbed()))


def test_rules_of_the_engine_hold_there_too() -> None:
    assert "needs +v or +m" in changed(cell_on(testbed(), device="cuda", avx512=False, dynamic=False), precision="int8")
    assert "act in decode only" in on(testbed(), device="cuda", deferral=2, phase="prefill")


def test_cells_to_be_measured_here_are_passed_over() -> None:
    assert lacking_there([tiny_cell("+v+l", avx512=True, packed_dense=True, device="cuda")]) == {}
