"""Routed experts on any host: what more of it may do, and its roofs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim.sizes import Sizes, sizes_of
from ktbench.spec.run_spec import RunSpec
from tests.sim.hosts import ARMS, COST, base, cell, decode, prefill

LOADS = st.lists(st.integers(0, 600), min_size=1, max_size=12).map(lambda rows: np.array(rows, dtype=np.int64))
MACHINES = st.fixed_dictionaries(
    {"domains": st.sampled_from([1, 2, 4]), "cores": st.integers(1, 64), "read_gb_per_s": st.floats(50, 400),
     "remote_gb_per_s": st.floats(5, 50), "vector_tflops": st.floats(5, 30), "vector_int8_tops": st.floats(35, 90),
     "amx_tflops": st.floats(3, 300), "amx_int8_tops": st.floats(3, 600)}
)  # fmt: skip
GRANTS = st.sampled_from(
    [arm | {"dynamic": d, "numa": n} for arm in ARMS for d in (False, True) for n in (False, True)]
)
PRECISIONS = st.sampled_from(["bf16", "int8", "int4_g128"])


def times_s(spec: RunSpec, loads: NDArray[np.int64]) -> tuple[float, ...]:
    fused = decode(spec, COST).seconds((loads > 0).astype(np.int64)), prefill(spec, COST).seconds(loads)
    return (*fused, *(base(spec, COST, prefill=phase).seconds(loads) for phase in (False, True)))


@settings(deadline=None)
@given(
    MACHINES, GRANTS, PRECISIONS, LOADS, st.floats(1, 5),
    st.sampled_from(["read_gb_per_s", "remote_gb_per_s", "vector_tflops", "vector_int8_tops", "amx_tflops",
                     "amx_int8_tops"]),
)  # fmt: skip
def test_a_faster_machine_is_never_slower(
    machine: dict[str, Any], arm: dict[str, bool], precision: str, loads: NDArray[np.int64], factor: float, name: str
) -> None:
    before = times_s(cell(arm, precision=precision, **machine), loads)
    after = times_s(cell(arm, precision=precision, **(machine | {name: machine[name] * factor})), loads)
    assert all(now <= was * (1 + 1e-9) for was, now in zip(before, after, strict=True))


@settings(deadline=None)
@given(MACHINES, GRANTS, PRECISIONS, LOADS)
def test_unbound_threads_are_never_faster(
    machine: dict[str, Any], arm: dict[str, bool], precision: str, loads: NDArray[np.int64]
) -> None:
    bound, apart = (times_s(cell(arm | {"numa": n}, precision=precision, **machine), loads) for n in (True, False))
    assert all(one <= other * (1 + 1e-12) for one, other in zip(bound, apart, strict=True))


@settings(deadline=None)
@given(MACHINES, GRANTS, LOADS)
def test_no_call_beats_its_roofs(machine: dict[str, Any], arm: dict[str, bool], loads: NDArray[np.int64]) -> None:
    spec = cell(arm, **machine)
    active, sizes = loads[loads > 0], sizes_of(spec)
    read_s, peak = roofs(sizes, machine, len(active))
    compute_s = active.sum() * sizes.expert_flops / peak
    decode_s, prefill_s, base_s, base_prefill_s = times_s(spec, loads)
    assert min(decode_s, base_s, base_prefill_s) >= read_s
    assert min(prefill_s, base_prefill_s) >= max(read_s, compute_s)


def roofs(sizes: Sizes, machine: dict[str, Any], experts: int) -> tuple[float, float]:
    """Seconds of reading so many experts from all domains, and the peak of them all."""
    read_s = experts * sizes.expert_bytes / (machine["domains"] * machine["read_gb_per_s"] * 1e9)
    peak = machine["domains"] * max(machine["amx_tflops"], machine["vector_tflops"]) * 1e12
    return read_s, peak


def test_more_bandwidth_never_slows_a_batch_in_decode() -> None:
    """Threads that are not bound gain little where the products of one token gain much."""
    machine: dict[str, Any] = {"remote_gb_per_s": 5.0, "amx_tflops": 3.0, "amx_int8_tops": 3.0}
    slow, fast = (cell({"avx512": True, "amx": True}, read_gb_per_s=near, **machine) for near in (50.0, 200.0))
    assert decode(fast, COST).seconds(np.array([161])) <= decode(slow, COST).seconds(np.array([161]))
