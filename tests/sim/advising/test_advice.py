"""Advice: what fits, what is fastest, and when it is too close to call."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.resources import data_folder
from ktbench.run.feasibility import Machine, feasibility
from ktbench.run.request import read_request
from ktbench.sim.advising.advice import (
    Option,
    Question,
    Release,
    Unfit,
    advised,
    again,
    as_released,
    is_close,
    option,
    options,
    releases,
    upgrades,
)
from ktbench.sim.advising.catalogue import catalogue, read_box, read_modules
from ktbench.sim.errors import comparison_error, held_out_errors, shipped_errors, speed_interval
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import cache_bytes, device_bytes, routed_bytes
from ktbench.spec.weights import BY_ACCURACY, weight_bits
from tests.sim.testbed import box_of, cell_on, testbed

GIB = 2**30


def why_not(spec: RunSpec) -> str:
    reason = None if spec.machine is None else feasibility(spec, Machine.described(spec.machine))
    return "" if reason is None else reason.why


def question(machine: MachineSpec) -> Question:
    plain = {"avx512": False, "dynamic": False}
    decode, prefill = (cell_on(machine, phase=phase, prompt=256, **plain) for phase in ("decode", "prefill"))
    return Question(decode=decode, prefill=prefill, fits=why_not).on(machine)


def made(precision: Any, speed: float) -> Option:
    """An option with a made-up speed."""
    cell = cell_on(testbed())
    return Option(
        precision=precision,
        decode=cell,
        prefill=cell,
        decode_speed=speed,
        prefill_speed=speed,
        deferred=0,
        deferring=speed,
    )


@settings(max_examples=12, deadline=None)
@given(st.floats(0.02, 8.0), st.sampled_from([0.25, 1.0, 4.0, 16.0]))
def test_what_is_advised_fits_into_memory(memory_gib: float, gpu_memory_gib: float) -> None:
    """By the bits of its weights alone, scales left out: no estimate of ours is asked."""
    machine = testbed(domains=1, memory_gib=memory_gib, gpu_memory_gib=gpu_memory_gib)
    shape = question(machine).decode.model.shape
    for found in options(question(machine)):
        if isinstance(found, Option):
            experts = shape.experts * shape.moe_layers * shape.expert_params * weight_bits(found.precision) / 8
            on_gpu = found.decode.engine.placement.ratio * experts
            assert experts - on_gpu <= memory_gib * GIB
            assert on_gpu <= gpu_memory_gib * GIB
        else:
            assert found.why


@settings(max_examples=12, deadline=None)
@given(st.floats(20, 400), st.floats(1.0, 4.0), st.sampled_from(BY_ACCURACY))
def test_more_bandwidth_is_never_slower(read: float, factor: float, precision: Any) -> None:
    slow, fast = (testbed(read_gb_per_s=one, remote_gb_per_s=one / 2) for one in (read, read * factor))
    found = [option(question(machine), precision) for machine in (slow, fast)]
    speeds = [one.decode_speed for one in found if isinstance(one, Option)]
    assert len(speeds) == 2
    assert speeds[1] >= speeds[0] * (1 - 1e-9)


def test_a_model_that_fits_on_the_gpu_lives_there() -> None:
    found = option(question(testbed(gpu_memory_gib=80.0)), "int8")
    assert isinstance(found, Option)
    assert found.decode.engine.placement.ratio == 1


def test_without_a_gpu_nothing_is_placed_or_deferred() -> None:
    found = option(question(testbed(gpu=None, calibration="ktbench")), "int8")
    assert isinstance(found, Option)
    assert (found.decode.engine.placement.ratio, found.deferred, found.decode.engine.device) == (0.0, 0, "cpu")


def test_features_are_those_that_the_machine_has() -> None:
    one = option(question(testbed(domains=1, amx_tflops=None, amx_int8_tops=None)), "int8")
    assert isinstance(one, Option)
    assert one.decode.engine.label == "+v+d+c"


def test_the_most_accurate_of_equally_fast_precisions_is_advised() -> None:
    near = 1 + comparison_error() / 2
    found = (made("bf16", 5.0), made("int8", 10.0), made("int4_g32", 10.0 * near), made("q2_k", 99.0))
    best = advised(found)
    assert best is not None
    assert best.precision == "int8"


def test_a_target_is_reached_as_accurately_as_can_be() -> None:
    found = (made("bf16", 5.0), made("int8", 10.0), made("int4_g32", 20.0))
    best, none = (advised(found, lambda speed, least=least: speed >= least) for least in (4.0, 50.0))
    assert best is not None
    assert none is not None
    assert (best.precision, none.precision) == ("bf16", "int4_g32")


def test_fewer_than_four_bits_are_advised_where_no_other_fits() -> None:
    unfit = [Unfit(precision=one, why="too large") for one in BY_ACCURACY[:3]]
    best = advised([*unfit, made("q3_k", 3.0), made("q2_k", 5.0)])
    assert best is not None
    assert best.precision == "q2_k"
    assert advised(unfit) is None


def test_closeness_is_symmetric_and_as_wide_as_held_out_errors() -> None:
    error = comparison_error()
    assert 0 < error < 0.5
    assert sum(abs(one) <= error for one in held_out_errors("decode")) >= 0.85 * len(held_out_errors("decode"))
    for one, other in ((10.0, 10.0 * (1 + error) * 0.999), (10.0, 10.0 * (1 + error) * 1.001)):
        assert is_close(one, other) == is_close(other, one)
    assert is_close(10.0, 10.0 * (1 + error) * 0.999)
    assert not is_close(10.0, 10.0 * (1 + error) * 1.001)


def test_keys_and_values_take_memory() -> None:
    """Closed form: two numbers of two bytes for each head of keys and values, layer and token of every request."""
    cell = cell_on(testbed(), prompt=1000)
    cell = replace(cell, workload=replace(cell.workload, batch=7))
    config = cell.model.config
    heads, width, layers = (config[key] for key in ("num_key_value_heads", "head_dim", "num_hidden_layers"))
    assert cache_bytes(cell) == 7 * 1000 * layers * 2 * heads * width * 2


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_nine_of_ten_known_errors_lie_within_an_interval(phase: str) -> None:
    low, high = speed_interval(50.0, phase)
    logs = shipped_errors() if phase == "decode" else [log(1 + error) for error in held_out_errors(phase)]
    within = [low <= 50.0 / exp(error) <= high for error in logs]
    assert low < 50.0 < high
    assert sum(within) >= 0.9 * (len(within) - 2)  # of the next one nine of ten, of those known two less


def test_released_checkpoints_are_of_models_that_there_are() -> None:
    models = {path.stem for path in (data_folder("conf") / "model").glob("*.yaml")}
    assert releases().keys() <= models
    names = [one.checkpoint for several in releases().values() for one in several]
    assert len(set(names)) == len(names)
    assert all(one.source for several in releases().values() for one in several)


# Checkpoint sizes of OpenAI's model card of gpt-oss, table 1; of the others the files on Hugging Face, in GB.
@pytest.mark.parametrize(
    ("model", "checkpoint", "gib"),
    [
        ("gpt_oss_120b", "openai/gpt-oss-120b", 60.8),
        ("gpt_oss_20b", "openai/gpt-oss-20b", 12.8),
        ("kimi_k2", "moonshotai/Kimi-K2-Thinking", 594e9 / GIB),
        ("minimax_m2", "MiniMaxAI/MiniMax-M2.5", 230e9 / GIB),
    ],
)
def test_released_weights_take_what_their_files_do(model: str, checkpoint: str, gib: float) -> None:
    (release,) = [one for one in releases()[model] if one.checkpoint == checkpoint]
    words = (f"precision={release.precision}", f"device_precision={release.device}", "engine.avx512=true")
    cell = read_request([f"model={model}", "machine=paper_a100", "model.layers=null", *words]).parts[0].spec
    assert (routed_bytes(cell) + device_bytes(cell)) / GIB == pytest.approx(gib, rel=0.02)


def test_released_weights_stay_as_they_are_on_the_device_too() -> None:
    release = Release(checkpoint="some/one", precision="fp8", device="bf16", source="made up")
    roomy = question(testbed(gpu_memory_gib=80.0))
    in_int8, in_bf16 = (device_bytes(replace(roomy.decode, device_precision=one)) for one in ("int8", "bf16"))
    tight = question(testbed(gpu_memory_gib=(in_int8 + in_bf16) / 2 / GIB))
    found = as_released(roomy, release)
    assert isinstance(found, Option)
    assert (found.decode.precision, found.decode.device_precision, found.release) == ("fp8", "bf16", release)
    assert again(roomy, found) == found
    assert isinstance(option(tight, "int8"), Option)  # with a lower precision on the device
    assert isinstance(as_released(tight, release), Unfit)


@pytest.mark.parametrize("cpu", catalogue().cpus)
def test_an_upgrade_is_a_machine_with_more_of_one_part(cpu: str) -> None:
    box = box_of(cpu, "RTX 4090")
    was = box.machine()
    for name, more in upgrades(box).items():
        now = more.machine()
        grown = {
            "memory": now.read_gb_per_s > was.read_gb_per_s,
            "modules": now.memory_gib > was.memory_gib and now.read_gb_per_s <= was.read_gb_per_s,
            "gpu": (now.gpus or 0) > (was.gpus or 0),
            "cores": now.cores > was.cores,
            "socket": now.domains > was.domains,
        }
        assert grown[name], name


def test_empty_channels_come_first() -> None:
    box = read_box("EPYC 9654", 2, "8x64 DDR5-4800", None)
    assert str(upgrades(box)["memory"].ram) == "24x64 DDR5-4800"
    assert "modules" not in upgrades(box)
    full_box = replace(box, ram=read_modules("24x64 DDR5-4800"))
    assert "memory" not in upgrades(full_box)
    assert str(upgrades(full_box)["modules"].ram) == "48x64 DDR5-4800"


@pytest.mark.parametrize(
    ("cpu", "ram", "instead"),
    [
        ("EPYC 9654", "24x64 DDR5-4800", "12x128 DDR5-4800"),
        ("EPYC 9654", "24x256 DDR5-4800", None),  # of 512 GB there are none
        ("EPYC 9355", "24x64 DDR5-6400", None),  # how much faster is not known
        ("Xeon Platinum 8380", "16x64 DDR4-3200", None),  # no faster
        ("Ryzen 9 7950X", "4x24 DDR5-6000", "2x48 DDR5-6000"),
        ("Core i9-7980XE", "8x32 DDR4-2666", None),
    ],
)
def test_one_large_module_is_faster_than_two_in_a_channel(cpu: str, ram: str, instead: str | None) -> None:
    found = upgrades(read_box(cpu, 1, ram, None))
    assert "modules" not in found
    assert (str(found["memory"].ram) if "memory" in found else None) == instead
