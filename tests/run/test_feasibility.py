"""Whether a described machine can run a cell, and if not, why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from ktbench.config.inject import read_rules
from ktbench.host.capabilities import feature_reasons
from ktbench.resources import data_folder
from ktbench.run.feasibility import Machine, feasibility, unsupported_simulated
from ktbench.run.request import cells_of, read_request
from ktbench.sim.simulation import simulate
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.machine import MachineSpec, with_constant
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.support import features_missing
from ktbench.spec.weights import BY_ACCURACY, Precision, expert_bytes
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
    assert spec.machine is not None
    return str(feasibility(spec, Machine.described(spec.machine)) or "")


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
        cell_on(testbed(domains=2), device="cuda", numa=True, domains=2, threads=36),
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
        (testbed(), {"device": "cuda", "packed_dense": True}, "+l: "),
        (testbed(), {"device": "cpu"}, "engine.device=cpu: testbed is simulated with its GPU"),
        (testbed(), {"device": "cuda", "handover": "flags"}, "engine.handover=flags: is not simulated"),
        (HOST_ONLY, {"threads": 73}, "engine.threads=73: allowed are 1 to 72"),
        (testbed(), {"device": "cuda", "threads": 73}, "engine.threads=73: "),
        (testbed(), {"device": "cuda", "threads": 35}, "engine.threads=35: "),
        (testbed(), {"device": "cuda", "numa": True, "domains": 4}, "engine.domains=4: "),
        (HOST_ONLY, {"numa": True, "domains": 4}, "engine.domains=4: "),
        (
            testbed(),
            {"device": "cuda", "placement": PlacementSpec(policy="frequency", ratio=0.5, profile="counts.npz")},
            "engine.placement.profile=counts.npz: is not simulated",
        ),
        (
            testbed(),
            {"device": "cuda", "placement": PlacementSpec(policy="dynamic", ratio=0.5, every=4)},
            "engine.placement.every=4: ",
        ),
    ],
)
def test_what_it_lacks_is_named(machine: MachineSpec, engine: dict[str, Any], said: str) -> None:
    assert on(machine, **engine).startswith(said)


# What a step depends on, by key: a value that a measured step of the machine would be slower or faster with.
DEVICE: dict[str, Any] = {"device": "cuda", "amx": True}
KNOBS: tuple[tuple[MachineSpec, dict[str, Any], dict[str, Any]], ...] = (
    *(
        (testbed(), DEVICE, knob)
        for knob in (
            {"threads": 8},
            {"numa": True},
            {"numa": True, "domains": 4},
            {"dynamic": False},
            {"cuda_graph": True},
            {"avx512": False},
            {"amx": False, "avx512": False, "dynamic": False},
            {"deferral": 2},
            {"skipping": 2},
            {"packed_dense": True},
            {"handover": "flags"},
            {"placement": PlacementSpec(policy="uniform", ratio=0.5)},
            {"placement": PlacementSpec(policy="dynamic", ratio=0.5, every=2)},
            {"placement": PlacementSpec(policy="frequency", ratio=0.5, profile="counts.npz")},
        )
    ),
    *(
        (testbed(gpu=None, calibration="ktbench"), {}, knob)
        for knob in (
            {"threads": 2},
            {"roles": "split", "device_threads": 1},
            {"roles": "split", "device_threads": 60},
            {"numa": True},
            {"numa": True, "domains": 4},
            {"packed_dense": True},
            {"deferral": 2},
            {"skipping": 2},
            {"avx512": False, "dynamic": False},
        )
    ),
)


@pytest.mark.parametrize(("machine", "engine", "knob"), KNOBS, ids=lambda one: str(one)[:60])
def test_a_setting_changes_a_simulated_step_or_is_refused(
    machine: MachineSpec, engine: dict[str, Any], knob: dict[str, Any]
) -> None:
    """Nothing that is not modelled is shown as without an effect."""
    usual, other = (cell_on(machine, **engine | changes) for changes in ({}, knob))
    assert why(usual) == ""
    assert why(other) or simulate(other).step_s != pytest.approx(simulate(usual).step_s, rel=1e-4)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_fewer_cores_are_slower_and_no_faster_than_one_can_read(phase: str, device: str) -> None:
    """As threads of a machine beside a GPU, and as a machine that a request gives fewer cores."""
    machine = testbed() if device == "cuda" else testbed(gpu=None, calibration="ktbench")
    whole = cell_on(machine, device=device, phase=phase, prompt=512)
    fewer = MachineSpec(**with_constant(asdict(machine), "cores", 1))
    two = replace(whole, machine=fewer)
    threads = replace(whole, engine=replace(whole.engine, threads=2))
    assert why(two) == why(threads) == ""
    assert simulate(two).step_s > 1.5 * simulate(whole).step_s
    assert simulate(threads).step_s > 1.5 * simulate(whole).step_s
    if device == "cuda":
        assert simulate(threads).step_s == pytest.approx(simulate(two).step_s)
    assert fewer.vector_tflops == pytest.approx(machine.vector_tflops / machine.cores)
    assert {"cores", "read_gb_per_s", "vector_tflops"} <= {*fewer.changed}


def test_prompts_of_unlike_length_are_not_simulated() -> None:
    assert changed(SPEC, workload=replace(SPEC.workload, batch=4, shortest=8)).startswith("workload.shortest=8: ")


@pytest.mark.parametrize("system", ["llama.cpp", "transformers", "kt-kernel", "fiddler"])
def test_other_systems_are_not_simulated(system: str) -> None:
    spec = replace(tiny_spec(system=system), machine=testbed())
    assert why(spec).startswith(f"system={system}: ")


@pytest.mark.parametrize("system", ["kt-kernel", "sglang", "zentorch"])
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4_g32"])
def test_formats_of_peers_that_need_avx512_are_refused_without_it(system: str, precision: Precision) -> None:
    machine = Machine(cpus=range(4), no_cuda="", features_missing=feature_reasons(MACHINES["+a"]))
    work = replace(tiny_spec().workload, phase="layer", routing="balanced", prompt=1)
    found = feasibility(replace(tiny_spec(), system=system, precision=precision, workload=work), machine)
    needs_it = system == "sglang" or precision != "bf16"
    assert (str(found) == f"system={system} precision={precision}: no AVX-512") is needs_it


@pytest.mark.parametrize("flags", [True, False])
def test_flags_need_a_driver_that_has_them(flags: bool) -> None:
    lacks = "" if flags else "the driver lacks cuStreamWaitValue32"
    missing = feature_reasons(MACHINES["+v"] | {"stream_memory": lacks})
    machine = Machine(cpus=range(4), no_cuda="", features_missing=missing, gpu_bytes=80 * 2**30)
    found = feasibility(tiny_spec(avx512=True, device="cuda", handover="flags"), machine)
    assert (found is None) is flags
    assert flags or str(found).startswith("handover=flags: the driver lacks cuStreamWaitValue32")


def test_experts_have_to_fit_in_the_memory_of_all_domains_in_their_precision() -> None:
    tight = testbed(memory_gib=(BF16_GIB + INT4_GIB) / 4)
    said = on(tight, device="cuda")
    assert f"{BF16_GIB:.1f} GiB" in said and f"{(BF16_GIB + INT4_GIB) / 2:.1f} GiB of memory" in said
    spec = cell_on(tight, device="cuda")
    (lighter,) = re.findall(r"precision=(\w+) takes", said)
    assert changed(spec, precision=lighter) == ""
    heavier = BY_ACCURACY[: BY_ACCURACY.index(lighter)]
    assert heavier and all("of memory" in changed(spec, precision=one) for one in heavier)
    assert "advise" in on(testbed(memory_gib=1e-3), device="cuda")
    base = replace(spec.engine, avx512=False, dynamic=False)
    assert "of memory" in why(replace(spec, engine=base))
    assert on(testbed(memory_gib=BF16_GIB / 2 * 1.001), device="cuda") == ""
    # Without a GPU all weights are in that memory.
    assert "of memory" in on(testbed(memory_gib=BF16_GIB / 2 * 1.001, gpu=None))


def test_weights_of_the_device_have_to_fit_on_all_gpus() -> None:
    small = testbed(gpu_memory_gib=DEVICE_GIB * 0.9)
    assert f"{DEVICE_GIB:.1f} GiB with device_precision=bf16" in on(small, device="cuda")
    assert changed(cell_on(small, device="cuda"), device_precision="int8") == ""
    assert "device_precision=int8 takes" in on(small, device="cuda")
    assert on(replace(small, gpus=2), device="cuda") == ""


def test_experts_that_live_with_the_device_take_room_there() -> None:
    engine: dict[str, Any] = {"device": "cuda", "placement": PlacementSpec(policy="uniform", ratio=0.5)}
    half = testbed(memory_gib=BF16_GIB / 4 * 1.001, gpu_memory_gib=DEVICE_GIB + BF16_GIB / 2 * 1.001)
    assert on(half, **engine) == ""
    assert on(replace(half, gpu_memory_gib=DEVICE_GIB + BF16_GIB / 2 * 0.99), **engine).count("of GPU memory") == 1
    assert "of memory" in on(half, device="cuda")


@pytest.mark.parametrize(("ratio", "missing"), [(0.0, "cache"), (0.5, "experts of engine.placement")])
def test_the_gpu_of_this_machine_needs_room_before_anything_loads(ratio: float, missing: str) -> None:
    """Weights, experts that live there, keys and values, and what CUDA takes itself."""
    placement = PlacementSpec(policy="uniform", ratio=ratio) if ratio else PlacementSpec()
    spec = replace(SPEC, machine=None, engine=replace(SPEC.engine, placement=placement))
    needed = (DEVICE_GIB + ratio * BF16_GIB + 2) * 2**30
    roomy, tight = (replace(Machine.described(testbed()), spec=None, gpu_bytes=int(needed * x)) for x in (1.2, 0.99))
    assert feasibility(spec, roomy) is None
    assert missing in str(feasibility(spec, tight))


def test_a_graph_in_prefill_is_simulated_as_the_paper_measured_it() -> None:
    assert on(testbed(), device="cuda", cuda_graph=True, phase="prefill") == ""


def test_the_experts_of_a_layer_run_on_the_host_of_any_machine() -> None:
    spec = tiny_spec(phase="layer", avx512=True, device="cuda")
    assert why(replace(spec, machine=testbed(gpu_memory_gib=1e-6))) == ""
    assert "workload.phase=layer" in why(replace(tiny_spec(phase="layer", avx512=True, skipping=1), machine=testbed()))


def test_rules_of_the_engine_hold_there_too() -> None:
    base = cell_on(testbed(), device="cuda", avx512=False, dynamic=False)
    assert changed(base, precision="int8").startswith("precision=int8: ")
    assert on(testbed(), device="cuda", deferral=2, phase="prefill").startswith("engine.deferral=2: ")


LEAN, ALONE = (read_rules(data_folder("conf") / "inject" / f"{name}.yaml") for name in ("lean", "experts"))
OWN_CORES, ON_GPU, LAYER = cell_on(HOST_ONLY), SPEC, replace(tiny_spec(phase="layer", avx512=True), machine=HOST_ONLY)
PACKED, APART = cell_on(HOST_ONLY, packed_dense=True), cell_on(HOST_ONLY, roles="split", device_threads=30)
BASE = cell_on(HOST_ONLY, avx512=False, dynamic=False)


def own(change: Callable[[InjectRule], InjectRule | None], rules: InjectSpec = LEAN) -> InjectSpec:
    """The rules under another name, each as `change` makes it, without those that it drops."""
    return InjectSpec(name="own", rules=tuple(rule for rule in map(change, rules.rules) if rule is not None))


def without(operator: str) -> InjectSpec:
    return own(lambda rule: None if rule.operator == operator else rule)


def with_other(operator: str, **changes: Any) -> InjectSpec:
    return own(lambda rule: replace(rule, **changes) if rule.operator == operator else rule)


@pytest.mark.parametrize(
    ("spec", "inject"),
    [
        *((spec, LEAN) for spec in (OWN_CORES, PACKED, APART, ON_GPU, LAYER, BASE)),
        (PACKED, own(lambda rule: replace(rule, name=f"my_{rule.name}"), replace(LEAN, rules=LEAN.rules[::-1]))),
        (PACKED, with_other("experts", module=None)),
        *((spec, ALONE) for spec in (OWN_CORES, LAYER, BASE)),
        (OWN_CORES, without("attention")),
        (ON_GPU, without("attention")),
        (APART, with_other("linear", module="lm_head")),
        (BASE, with_other("experts", args={"precision": "int8"})),
        (OWN_CORES, with_other("linear", args={"precision": "int8"})),
    ],
)  # fmt: skip
def test_rules_of_your_own_are_simulated_where_they_change_nothing_else_than_lean(
    spec: RunSpec, inject: InjectSpec
) -> None:
    assert changed(spec, inject=inject) == ""


@pytest.mark.parametrize(
    ("spec", "inject", "said"),
    [
        (PACKED, ALONE, "inject=experts: the rule linears (operator linear) of lean"),
        (PACKED, without("attention"), "inject=own: the rule attention (operator attention) of lean"),
        (PACKED, with_other("attention", class_name="MineAttention"), "the rule attention (operator attention) is not"),
        (PACKED, with_other("linear", module="lm_head"), "inject=own: the rule linears (operator linear) is not"),
        (PACKED, with_other("linear", args={"precision": "int8"}), "inject=own: the rule linears"),
        (PACKED, InjectSpec(name="none", rules=LEAN.rules[:1]), "inject=none: the rule "),
        (APART, ALONE, "inject=experts: the rule shared_experts"),
        (ON_GPU, ALONE, "inject=experts: the rule "),
        (ON_GPU, without("latent_attention"), "inject=own: the rule latent_attention"),
        (ON_GPU, with_other("linear", args={"precision": "int8"}), "inject=own: the rule linears"),
        (OWN_CORES, with_other("experts", args={"precision": "int8"}), "inject=own: precisions of single layers"),
    ],
)
def test_rules_whose_operators_have_no_model_are_refused_as_a_request(
    spec: RunSpec, inject: InjectSpec, said: str
) -> None:
    spec = replace(spec, inject=inject)
    assert said in why(spec)
    assert why(spec).endswith("; set inject=lean or machine=here")
    with pytest.raises(RequestError, match=rf"^inject={inject.name}: "):
        unsupported_simulated([Cell(label="+v", spec=spec, spec_id=spec_id(spec))])


def test_cells_that_are_not_simulated_are_skipped() -> None:
    described = replace(SPEC, machine=HOST_ONLY)
    cells = [tiny_cell("base"), Cell(label="+v", spec=described, spec_id=spec_id(described))]
    assert list(unsupported_simulated(cells)) == [cells[1].key]


# Machines with a large GPU, one NUMA node and no AMX; the second without AVX-512, as most desktops are.
GRANTS = {"avx2": "", "avx512": "", "amx": "no AMX", "numa": "one NUMA node", "cuda": "", "stream_memory": ""}
MACHINES = {"+v": GRANTS, "+a": GRANTS | {"avx512": "no AVX-512"}}
DEFERRED = {f"+d+c deferral={number}" for number in (*range(1, 9), "auto")}


DECODE: dict[str, set[str]] = {
    "decode": {"base", "", "+d", "+d+c"},
    "deferral": {"+d+c"} | DEFERRED,
    "placement": {"+d+c"},
    "depth": {"+d", "+d+c"},
    "handover": {f"{arm}{by}" for arm in ("+d", "+d+c", "+d+c deferral=3") for by in ("", " handover=flags")},
}


@pytest.mark.parametrize(
    ("vector", "ablation", "runs"),
    [
        *((vector, ablation, runs) for vector in MACHINES for ablation, runs in DECODE.items()),
        ("+v", "prefill", {"base", ""}),
        ("+a", "prefill", {"base", "", "+d"}),  # +a stands for +m, too, which +d comes after
    ],
)
def test_shipped_ablations_run_on_a_gpu_with_one_numa_node(
    vector: str, ablation: str, runs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every point; arms that need what the machine lacks say so."""
    missing, grants = feature_reasons(MACHINES[vector]), MACHINES[vector]
    monkeypatch.setattr("ktbench.run.request.machine_capabilities", lambda: grants)
    machine = Machine(cpus=range(16), no_cuda="", features_missing=missing, gpu_bytes=80 * 2**30)
    cells = list(cells_of(read_request([f"+ablation={ablation}", "engine.device=cuda"])))
    seen = {(cell.label, feasibility(cell.spec, machine)) for cell in cells if cell.role == "arm"}
    expected = {"base" if label == "base" else vector + label for label in runs}
    assert expected <= {label for label, reason in seen if reason is None}
    for label, reason in seen:
        assert (reason is None) == (label in expected), f"{label}: {reason}"
        assert reason is None or str(reason) in ("+m: no AMX", "+n: one NUMA node")
    for cell in cells:
        if "+n" in cell.label:
            assert "+n: one NUMA node" in map(str, features_missing(cell.spec, missing))
