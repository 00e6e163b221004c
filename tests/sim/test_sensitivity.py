"""Sensitivity: the arithmetic on steps whose shares are known, and what holds on the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.sim.sensitivity import FIXED, RESOURCES, bottleneck, resource_lines, sensitivity
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from tests.sim.testbed import cell_on, testbed

Step = Callable[[MachineSpec], float]
UNITS = ("vector_tflops", "vector_int8_tops", "amx_tflops", "amx_int8_tops")


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], RunSpec]:
    """Has cells take what a formula of the machine's constants says."""

    def of(step: Step) -> RunSpec:
        monkeypatch.setattr("ktbench.sim.sensitivity.step_s", lambda spec: step(spec.machine))
        return cell_on(testbed())

    return of


def shares(spec: RunSpec, by: float = 0.10) -> dict[str, float]:
    return {one.constant: one.share for one in sensitivity(spec, by)}


def gains(spec: RunSpec) -> dict[str, float]:
    return {one.constant: one.gain for one in sensitivity(spec)}


def test_a_step_wholly_bound_by_a_resource_gains_as_much_as_there_is_more(stepping: Callable[[Step], RunSpec]) -> None:
    found = gains(stepping(lambda machine: 1 / machine.read_gb_per_s))
    assert found.pop("read_gb_per_s") == pytest.approx(0.10)
    assert all(gain == pytest.approx(0) for gain in found.values())


@pytest.mark.parametrize("by", [0.01, 0.10, 1.0])
def test_shares_are_those_of_the_parts_whatever_is_added(stepping: Callable[[Step], RunSpec], by: float) -> None:
    found = shares(stepping(lambda m: 3 * 220 / m.read_gb_per_s + 717 / (m.gpu_gb_per_s or 0) + 1), by)
    assert found["read_gb_per_s"] == pytest.approx(0.6)
    assert found["gpu_gb_per_s"] == pytest.approx(0.2)


def test_the_largest_gain_comes_first(stepping: Callable[[Step], RunSpec]) -> None:
    found = sensitivity(stepping(lambda m: 1 / m.read_gb_per_s + 4 / (m.gpu_gb_per_s or 0)))
    assert [one.constant for one in found][:2] == ["gpu_gb_per_s", "read_gb_per_s"]
    assert [one.gain for one in found] == sorted((one.gain for one in found), reverse=True)


@pytest.mark.parametrize("cores", [1, 2, 9, 36, 40])
def test_whole_cores_are_scaled_back_to_the_share_asked_for(stepping: Callable[[Step], RunSpec], cores: int) -> None:
    spec = stepping(lambda machine: 1 / machine.cores)
    assert gains(replace(spec, machine=testbed(cores=cores)))["cores"] == pytest.approx(0.10)


def test_cores_bring_their_units_and_these_are_named(stepping: Callable[[Step], RunSpec]) -> None:
    spec = stepping(lambda machine: 1 / (machine.amx_tflops or 0))
    assert gains(spec)["cores"] == pytest.approx(0.10)
    assert bottleneck(sensitivity(spec)).title == RESOURCES["amx_tflops"]


def test_cores_that_only_divide_the_work_less_evenly_are_left_idle(stepping: Callable[[Step], RunSpec]) -> None:
    assert gains(stepping(lambda machine: machine.cores))["cores"] == 0


def test_the_bottleneck_is_the_largest_share(stepping: Callable[[Step], RunSpec]) -> None:
    held = bottleneck(sensitivity(stepping(lambda m: 2 * 220 / m.read_gb_per_s + 717 / (m.gpu_gb_per_s or 0))))
    assert (held.title, held.share) == ("read bandwidth", pytest.approx(2 / 3))
    assert str(held) == "read bandwidth (67 %)"


def test_where_all_resources_bound_less_than_half_it_is_fixed_costs(stepping: Callable[[Step], RunSpec]) -> None:
    held = bottleneck(sensitivity(stepping(lambda m: 220 / m.read_gb_per_s + 717 / (m.gpu_gb_per_s or 0) + 3)))
    assert (held.title, held.share) == (FIXED, pytest.approx(0.6))


def test_lines_say_in_words_what_helps_what_does_not_and_what_holds_it_up(stepping: Callable[[Step], RunSpec]) -> None:
    helps, nothing, held = resource_lines(sensitivity(stepping(lambda machine: 3 * 220 / machine.read_gb_per_s + 1)))
    assert helps == "10 % more read bandwidth: +7.3 % tokens/s"
    assert nothing.startswith("10 % more gives nothing: ")
    assert "GPU bandwidth" in nothing
    assert held == "bottleneck: read bandwidth, 75 % of the step"


def test_lines_of_a_step_that_nothing_helps(stepping: Callable[[Step], RunSpec]) -> None:
    nothing, held = resource_lines(sensitivity(stepping(lambda machine: 1.0)))
    assert nothing.startswith("10 % more gives nothing: read bandwidth")
    assert held == "bottleneck: fixed costs, 100 % of the step"


@pytest.mark.parametrize("by", [0.0, -0.1])
def test_nothing_more_is_refused(by: float) -> None:
    with pytest.raises(ValueError, match=f"by={by}: must be above 0"):
        sensitivity(cell_on(testbed()), by)


def test_every_resource_is_asked_about() -> None:
    assert set(shares(cell_on(testbed()))) == set(RESOURCES)


def test_what_the_machine_lacks_is_not_asked_about(stepping: Callable[[Step], RunSpec]) -> None:
    spec = stepping(lambda machine: 1.0)
    assert set(RESOURCES) - set(shares(replace(spec, machine=testbed(amx_tflops=None, amx_int8_tops=None)))) == {
        "amx_tflops",
        "amx_int8_tops",
    }
    assert set(RESOURCES) - set(shares(replace(spec, machine=testbed(domains=1)))) == {"remote_gb_per_s"}
    device = {"gpu_gb_per_s", "gpu_tflops", "gpu_ghz", "link_gb_per_s"}
    assert set(RESOURCES) - set(shares(replace(spec, machine=testbed(gpu=None)))) == device


features = st.fixed_dictionaries(
    {
        "amx": st.booleans(),
        "dynamic": st.booleans(),
        "numa": st.booleans(),
        "cuda_graph": st.booleans(),
        "deferral": st.integers(0, 6),
    }
)


@settings(max_examples=25, deadline=None)
@given(phase=st.sampled_from(["decode", "prefill"]), prompt=st.sampled_from([1, 32, 512, 8192]), engine=features)
def test_more_of_a_resource_is_never_slower(phase: str, prompt: int, engine: dict[str, bool | int]) -> None:
    spec = cell_on(testbed(), phase=phase, prompt=prompt, **engine)
    for one in sensitivity(spec):
        assert one.gain >= -1e-9, one.constant
        assert one.gain <= 0.10 + 1e-9 or one.constant == "cores", one.constant
