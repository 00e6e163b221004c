"""A cell has the published numbers of its own arm, machine, model, precision and work beside it, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results import published_names, read_published
from ktbench.results.published import error_of, not_simulated_reason, published_for
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.machine import MachineSpec, with_constant
from ktbench.spec.published import Published
from ktbench.spec.wire import from_plain, to_plain
from tests.report.paper_cells import KT, machine, spec

ALL = read_published(*published_names())


def found(arm: str, *figures: str, anywhere: bool = False, **options: Any) -> list[float]:
    numbers = read_published(*figures)
    return [n.value for n in published_for(spec(arm, **options), arm, numbers, anywhere=anywhere)]


def on(name: str, **constants: Any) -> MachineSpec:
    """A machine with constants that a request changed."""
    content = to_plain(machine(name))
    for key, value in constants.items():
        content = with_constant(content, key, value)
    return from_plain(content, MachineSpec)


@pytest.mark.parametrize(
    ("arm", "options", "values"),
    [
        ("base", {}, [2.43]),
        ("base (A/A)", {}, [2.43]),
        (KT, {}, [5.87]),
        (f"{KT} bf16", {}, [5.87]),
        (f"{KT} deferral=3", {}, [7.79]),
        (f"{KT} deferral=auto", {}, [7.79]),
        (f"{KT} deferral=2", {}, []),
        (f"{KT} int4_g32", {"on": "paper_4080"}, [16.15]),
        (f"{KT} int4_g32", {"on": "paper_a100"}, []),
        (f"{KT} int8", {"on": "paper_4080"}, []),
        (f"{KT} deferral=auto int4_g32", {"on": "paper_4080"}, [23.01]),
        (KT, {"of": "deepseek_v2"}, [11.95]),
        (KT, {"prompt": 32}, [5.87]),
        (KT, {"batch": 4}, []),
        (KT, {"on": None}, []),
        (KT, {"layers": 5}, []),
        ("+v+m+d+n", {}, []),
        ("llama.cpp", {}, [4.68]),
        ("llama.cpp int8", {"on": "paper_4080", "of": "deepseek_v2"}, [9.94]),
        ("llama.cpp q8_0", {"on": "paper_4080", "of": "deepseek_v2"}, [9.94]),
        ("llama.cpp int4_g32", {"on": "paper_4080"}, [9.06]),
    ],
)
def test_decode(arm: str, options: dict[str, Any], values: list[float]) -> None:
    if "llama.cpp" in arm:
        assert _peer(arm, **options) == values
    else:
        assert found(arm, "fig12", **options) == values


def _peer(arm: str, **options: Any) -> list[float]:
    """Peers run on no device of ours."""
    asked = spec("base", **options)
    precision = arm.split()[1] if " " in arm else "bf16"
    asked = replace(asked, system="llama.cpp", precision=precision)  # type: ignore[arg-type]
    return [number.value for number in published_for(asked, arm, read_published("fig12"))]


ON = {
    "qwen3": {"of": "qwen3_30b_a3b", "on": "core_14900kf_4090"},
    "next": {"of": "qwen3_next_80b_a3b", "on": "xeon_6454s_4x4090"},
}
LONG = {"phase": "prefill", "prompt": 8192}
FEW = {"phase": "layer", "active_experts": 8, "batch": 1}
SOCKET = on("paper_a100", domains=1)
RANDOM = PlacementSpec(policy="random", ratio=0.3)


@pytest.mark.parametrize(
    ("arm", "figure", "options", "values"),
    [
        # Prefill is of its length and in one piece; a length that the source does not say matches nothing.
        ("base", "fig11", LONG, [70.02]),
        ("base", "fig11", LONG | {"prompt": 8000}, []),
        ("base", "fig11", LONG | {"chunk": 256}, []),
        ("base", "fig11", LONG | {"batch": 2}, []),
        ("+a+d+c", "concurrency", ON["qwen3"] | {"phase": "prefill"}, []),
        # A precision that the source does not say matches every one.
        ("+a+d+c", "concurrency", ON["qwen3"] | {"batch": 4}, [27]),
        ("+a+d+c int8", "concurrency", ON["qwen3"] | {"batch": 4}, [27]),
        # Kernels of PyTorch differ by whether they use AMX.
        ("base", "fig3", {"phase": "layer", "batch": 32, "on": SOCKET}, [0.126]),
        ("+m+d+n", "fig7", {"phase": "layer", "batch": 96}, [93.5]),
        # Policy and ratio of a placement.
        (f"{KT} int8", "placement", ON["next"] | {"placement": RANDOM}, [62.86]),
        (f"{KT} int8", "placement", ON["next"], [53.01, 52.96, 54.18, 52.72, 53.37]),
        (KT, "placement", ON["next"], []),
        (KT, "fig12", {"placement": RANDOM}, []),
        # A machine with other constants or another name is another.
        ("base", "fig12", {"on": on("paper_a100", read_gb_per_s=242)}, []),
        ("base", "fig12", {"on": replace(machine("paper_a100"), name="mine")}, []),
        # Anywhere leaves machines out.
        ("base", "fig12", {"anywhere": True, "on": None}, [2.43]),
        ("base", "fig12", {"anywhere": True, "on": None, "layers": 5}, []),
        ("+m+d", "fig3", {"anywhere": True, "on": None, "phase": "layer", "batch": 32}, [0.194]),
    ],
)
def test_other_work_and_machines(arm: str, figure: str, options: dict[str, Any], values: list[float]) -> None:
    assert found(arm, figure, **options) == values


@pytest.mark.parametrize(("tokens", "tflops"), [(1, 0.194), (512, 20.65)])
@pytest.mark.parametrize("same", [{}, {"layers": 5}, {"active_experts": 256}])
def test_a_layer_is_matched_by_the_tokens_of_an_expert(tokens: int, tflops: float, same: dict[str, int]) -> None:
    work = {"phase": "layer", "batch": 32 * tokens}
    assert found("+m+d", "fig3", on=SOCKET, **work, **same) == [tflops]
    assert found("+m+d", "fig3", on="paper_a100", **work) == []


def test_few_active_experts_are_another_work() -> None:
    assert found("base", "fig3", "stated", **FEW) == [5.8]
    assert found("base", "fig3", "stated", on=SOCKET, **FEW) == [6.9]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("fig13-001", "only speeds are"),
        ("testbed-001", "only speeds are"),
        ("fig12-016", "only our own engine"),
        ("concurrency-003", "does not name the machine"),
        ("concurrency-004", "does not give the number of tokens"),
        ("fig12-001", "no cell at its settings was planned"),
    ],
)
def test_why_a_number_has_no_cell(wanted: str, says: str) -> None:
    (number,) = (number for number in ALL if number.id == wanted)
    assert says in not_simulated_reason(number)


def number(metric: str, value: float) -> Published:
    return replace(ALL[0], metric=metric, value=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "published", "simulated", "error"),
    [
        ("tokens/s", 10, 11, 0.1),
        ("TFLOPS", 10, 9, -0.1),
        ("ms", 10, 8, 0.25),
        ("% host busy", 50, 60, 0.2),
        ("% time saved", 20, 36, 0.25),
        ("score", 50, 60, None),
        ("launches", 50, 60, None),
    ],
)
def test_errors_are_on_throughput(metric: str, published: float, simulated: float, error: float | None) -> None:
    assert error_of(simulated, number(metric, published)) == (None if error is None else pytest.approx(error))


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_a_rate_and_its_time_have_the_same_error(published: float, simulated: float) -> None:
    as_rate = error_of(simulated, number("tokens/s", published))
    assert error_of(1e3 / simulated, number("ms", 1e3 / published)) == pytest.approx(as_rate)
