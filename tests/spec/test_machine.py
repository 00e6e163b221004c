"""A machine by its constants: what is refused by name, what it lacks, and sources that follow a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.spec.machine import CONSTANTS, MachineSpec, with_constant
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_plain, spec_id, to_plain
from tests.sim.testbed import DEVICE, HOST
from tests.tiny import tiny_spec

GPU = {name: value for name, value in DEVICE.items() if name != "gpu"}
AMX = ("amx_tflops", "amx_int8_tops")
REQUIRED = [constant.name for constant in CONSTANTS if constant.of == "host" and not constant.optional]


def content(**changes: Any) -> dict[str, Any]:
    """Plain content of a machine with AMX and a GPU, and a source for every constant."""
    sources = {constant.name: f"data sheet, {constant.name}" for constant in CONSTANTS}
    return {"name": "box", "title": "A box", "sources": sources} | HOST | DEVICE | changes


def machine(**changes: Any) -> MachineSpec:
    return from_plain(content(**changes), MachineSpec)


def without(*names: str) -> dict[str, str]:
    return {name: source for name, source in content()["sources"].items() if name not in names}


@pytest.mark.parametrize("name", [constant.name for constant in CONSTANTS])
@pytest.mark.parametrize("value", [0, -1])
def test_a_constant_that_is_not_above_zero_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"machine\.{name}={value}(\.0)?: must be above 0"):
        machine(**{name: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_constant_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValueError, match=r"machine\.read_gb_per_s=(nan|inf): must be above 0"):
        replace(machine(), read_gb_per_s=value)


@pytest.mark.parametrize("name", [constant.name for constant in CONSTANTS])
@pytest.mark.parametrize("source", [None, "", "  "])
def test_a_constant_without_a_source_is_refused_by_name(name: str, source: str | None) -> None:
    sources = without(name) | ({} if source is None else {name: source})
    with pytest.raises(ValueError, match=rf"machine\.{name}=.*: has no source.*machine\.sources\.{name}"):
        machine(sources=sources, nvlink_gb_per_s=450.0)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_constant_of_the_host_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        from_plain({key: value for key, value in content().items() if key != name}, MachineSpec)


@pytest.mark.parametrize("name", GPU)
def test_a_gpu_needs_all_its_constants_and_they_need_the_gpu(name: str) -> None:
    with pytest.raises(ValueError, match=rf"machine\.{name}: missing, machine\.gpu=RTX 4080 needs it"):
        machine(**{name: None})
    alone = dict.fromkeys(GPU) | {name: GPU[name]}
    with pytest.raises(ValueError, match=rf"machine\.{name}=.*: name the GPU with machine\.gpu"):
        machine(gpu=None, **alone)


def test_a_description_without_nvlink_is_the_cell_that_it_was_before_there_was_any() -> None:
    without_it, with_it = (replace(tiny_spec(), machine=machine(nvlink_gb_per_s=rate)) for rate in (None, 450.0))
    assert spec_id(without_it) == "55fac65d4f8b" != spec_id(with_it)


def test_amx_has_both_peaks_or_none() -> None:
    with pytest.raises(ValueError, match="a machine with AMX has both"):
        machine(amx_int8_tops=None)


def test_a_source_of_no_constant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"machine\.sources\.core: no such constant, did you mean cores"):
        machine(sources=content()["sources"] | {"core": "?"})


def test_what_a_machine_lacks_is_named_per_feature() -> None:
    assert [name for name, why in machine().feature_reasons.items() if why] == ["avx2"]
    least = machine(domains=1, vector="avx2", gpu=None, **dict.fromkeys([*AMX, *GPU]))
    assert {name: why for name, why in least.feature_reasons.items() if why} == {
        "avx512": "box has no AVX-512",
        "amx": "box has no AMX",
        "numa": "box has one NUMA domain",
        **dict.fromkeys(("cuda_graph", "device_prefill_tokens", "handover"), "box has no GPU"),
    }


def test_a_changed_constant_says_what_it_was() -> None:
    before = content()
    after = with_constant(with_constant(before, "read_gb_per_s", 300.0), "cores", 8)
    assert (after["read_gb_per_s"], after["cores"]) == (300.0, 8)
    assert after["sources"]["read_gb_per_s"] == "changed by the request (box: 220 GB/s)"
    assert after["sources"]["cores"] == "changed by the request (box: 36)"
    assert after["sources"]["gpu_ghz"] == before["sources"]["gpu_ghz"]
    assert before == content()
    none = content(amx_tflops=None)
    assert with_constant(none, "amx_tflops", 8.0)["sources"]["amx_tflops"] == "changed by the request (box: none)"


def test_the_value_that_a_constant_has_already_keeps_its_source() -> None:
    assert with_constant(content(), "cores", 36) == content()


def test_a_machine_survives_json_and_is_asked_for_by_its_constants() -> None:
    spec = replace(tiny_spec(), machine=machine())
    assert from_plain(to_plain(spec), RunSpec) == spec
    renamed = machine(name="other", title="Other", sources=dict.fromkeys(content()["sources"], "elsewhere"))
    ids = {spec_id(replace(spec, machine=one)) for one in (machine(), renamed)}
    assert len(ids | {spec_id(tiny_spec()), spec_id(replace(spec, machine=machine(cores=5)))}) == 3


@pytest.mark.parametrize("phase", ["prefill", "decode", "layer"])
def test_the_summary_of_a_simulated_cell_names_its_machine(phase: str) -> None:
    measured = tiny_spec(phase=phase)
    assert replace(measured, machine=machine()).summary == f"{measured.summary}, simulated on A box"
