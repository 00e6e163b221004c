"""Fused operators of other systems as peers of the layer phase: output against float64, copies, what they refuse."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.layer import LayerSystem
from ktbench.engine.load_layer import LayerWeights, load_layer
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.fused_operators import OPERATORS, ROUNDING, OperatorExperts, _gptq_words
from ktbench.peers.layers import Float8Blocks, Rounding
from ktbench.run.check import check, check_the_check
from ktbench.run.worker_process import open_peer
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.arrays import exact_output, relative
from tests.engine.engines import peer_lacks
from tests.engine.tiny import layer, run, spec, tiny_model

pytestmark = pytest.mark.peers

ONE = HostRole(cores=1)
# How far the output may be from the bf16 weights: int8 rounds weights and activations, int4 has 16 values.
LOST = {"bf16": 0.01, "int8": 0.04, "fp8": 0.06, "int4_g32": 0.25, "int4_g64": 0.25, "int4_g128": 0.25}
WIDTH = 256
LAYER_BYTES = 2 * 8 * 3 * WIDTH * WIDTH
INSTALLED = {name: importlib.util.find_spec(BY_NAME[name].module) is not None for name in OPERATORS}


def lacking(name: Any, precision: str) -> str:
    """What this machine lacks to run a format of a peer."""
    return peer_lacks(name, precision) if INSTALLED[name] else f"{BY_NAME[name].package} is not installed: nox -s peers"


RUNS = [
    pytest.param(name, precision, marks=pytest.mark.skipif(lacking(name, precision) != "", reason=why))
    for name in OPERATORS
    for precision in BY_NAME[name].types  # type: ignore[index]
    for why in [lacking(name, precision) or "runs here"]
]
runs = pytest.mark.parametrize(("name", "precision"), RUNS)
BF16 = pytest.mark.parametrize(("name", "precision"), [one for one in RUNS if one.values[1] == "bf16"])


def model(**changes: Any) -> ModelSpec:
    return tiny_model(**({"hidden_size": WIDTH, "moe_intermediate_size": WIDTH} | changes))


def cell_spec(name: Any, work: WorkloadSpec, precision: Any = "bf16", **changes: Any) -> RunSpec:
    return replace(spec(model(**changes), work), system=name, precision=precision)


def open_layer(cells: list[RunSpec], host: HostRole = ONE) -> LayerSystem:
    system = open_peer(cells, host)
    assert isinstance(system, LayerSystem)
    return system


@runs
def test_output_is_that_of_the_weights_as_they_are_stored(name: str, precision: str) -> None:
    works = (layer(batch=1, steps=2), layer(batch=7, steps=2, routing="zipf"), layer(batch=40, steps=2))
    cells = [cell_spec(name, work, precision) for work in works]
    system = open_layer(cells)
    for requested in cells:
        system.configure(requested)
        outputs = run(system, 2)
        store = LayerWeights.of(requested.model).passing(0)
        for output, prepared in zip(outputs, system._steps, strict=True):
            assert relative(output.float().numpy(), exact_output(store, prepared)) < LOST[precision]
        seen = system.observe()
        verdict = check(seen, system.reference, requested.tolerance)
        assert verdict.outcome is Outcome.OK, verdict.why
        assert check_the_check(seen, system.reference, requested.tolerance) == ""
    system.close()


@BF16
def test_copies_and_tokens_are_those_of_base(name: str, precision: str) -> None:
    requested = cell_spec(name, layer(batch=4, steps=5, active_experts=4), precision)
    host = HostRole(cores=1, cache_bytes=2 * LAYER_BYTES)
    system, base = open_layer([requested], host), load_layer(requested.model, host=host)
    system.configure(requested)
    base.configure(replace(requested, system="ktbench"))
    outputs = run(system, 5)
    base.start()
    turns = [prepared.backend for prepared in system._steps]
    assert turns[0] is turns[3]
    assert len({id(backend) for backend in turns}) == 3
    for output, prepared, other in zip(outputs, system._steps, base._steps, strict=True):
        assert torch.equal(prepared.hidden, other.hidden)
        assert torch.equal(prepared.routing.gates, other.routing.gates)
        assert isinstance(prepared.backend, OperatorExperts)
        assert relative(output.float().numpy(), exact_output(prepared.backend.store, prepared)) < LOST[precision]
    assert system.work() == base.work()
    assert not system.counters()
    system.close()


@runs
def test_notes_name_what_runs_and_what_rounding_costs(name: str, precision: str) -> None:
    requested = cell_spec(name, layer(), precision)
    system = open_layer([requested])
    system.configure(requested)
    described, *rounding = system.notes()
    assert BY_NAME[name].package in described  # type: ignore[index]
    assert len(rounding) == (precision != "bf16")
    system.close()
    with pytest.raises(ValueError, match="were released"):
        system.configure(requested)


@BF16
def test_what_it_cannot_run_is_named(name: str, precision: str) -> None:
    with pytest.raises(Unsupported, match="precision=q8_0"):
        open_peer([cell_spec(name, layer(), "q8_0")], ONE)
    with pytest.raises(Unsupported, match="without biases"):
        open_peer([replace(cell_spec(name, layer(), precision), model=tiny_model("gpt_oss_20b"))], ONE)
    system = open_layer([cell_spec(name, layer(), precision)])
    wide = cell_spec(name, layer(), precision)
    with pytest.raises(ValueError, match=r"engine\.threads=2: allowed are 1 to 1"):
        system.configure(replace(wide, engine=replace(wide.engine, threads=2)))
    system.close()


@pytest.mark.parametrize("name", [name for name, installed in INSTALLED.items() if not installed])
def test_without_the_package_it_says_how_to_get_it(name: str) -> None:
    with pytest.raises(Unsupported, match="nox -s peers"):
        open_peer([cell_spec(name, layer())], ONE)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(set(ROUNDING) - {"bf16", "fp8"})))
def test_rounded_weights_are_the_nearest_of_their_group(seed: int, precision: str) -> None:
    rounding = ROUNDING[precision]
    assert isinstance(rounding, Rounding)
    matrix = torch.randn((8, 256), generator=torch.Generator().manual_seed(seed)).bfloat16()
    numbers, scales = rounding.numbers(matrix)
    group = rounding.group or 256
    steps = scales.double().numpy().repeat(group, axis=1)
    exact = matrix.double().numpy()
    off = np.abs(exact - numbers.double().numpy() * steps) / steps
    # A scale that is itself rounded to bf16 may leave the largest weight up to 2⁻⁹ of itself beyond the last number.
    assert off.max() <= 0.5 + 1e-3
    assert (
        np.abs(scales.double().numpy() * rounding.most / np.abs(exact).reshape(8, -1, group).max(2) - 1).max() < 2**-8
    )
    assert torch.equal(rounding(matrix), (numbers.float() * torch.from_numpy(steps).float()))


@given(st.integers(0, 2**32 - 1))
def test_blocks_of_float8_are_rounded_to_the_nearest_and_their_largest_is_exact(seed: int) -> None:
    """A normal number of e4m3 has four bits; below 2⁻⁶, the least one, steps are even."""
    draw = torch.Generator().manual_seed(seed)
    matrix = (torch.randn((128, 256), generator=draw) * torch.rand(256, generator=draw)).bfloat16()
    matrix[:, 128:] = 0
    numbers, scales = Float8Blocks().numbers(matrix)
    assert numbers.dtype == torch.float8_e4m3fn
    assert scales.shape == (1, 2)
    assert scales[0, 1] == 0
    off = (Float8Blocks()(matrix).double() - matrix.double()).abs()
    assert (off <= 2**-4 * matrix.double().abs() * (1 + 1e-6) + 2**-10 * scales[0, 0].double()).all()
    assert (off[matrix.abs() == matrix.abs().max()] <= 1e-6 * matrix.abs().max()).all()


def test_a_row_of_zeros_stays_zero() -> None:
    numbers, scales = Rounding(most=7, group=32).numbers(torch.zeros(2, 64).bfloat16())
    assert not numbers.any()
    assert torch.isfinite(scales).all()


@given(st.integers(0, 2**32 - 1))
def test_words_hold_eight_numbers_of_a_row(seed: int) -> None:
    numbers = torch.randint(-8, 8, (3, 16), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    words = _gptq_words(numbers).numpy().view(np.uint32)
    assert words.shape == (2, 3)
    for row in range(3):
        nibbles = [int(words[k // 8, row]) >> 4 * (k % 8) & 15 for k in range(16)]
        assert nibbles == [int(n) + 8 for n in numbers[row]]
