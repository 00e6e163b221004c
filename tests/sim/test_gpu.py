"""Parts on a GPU: closed forms where nothing is lost, and what more of a constant may do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.cost_gpu import Gpu, Part
from ktbench.sim.sizes import Sizes, sizes_of
from tests.sim.real import real_cell, real_machine
from tests.sim.testbed import testbed

COST = read_calibration("ktransformers")
IDEAL = COST.changed(
    {"gpu_stream": 1.0, "gemm": 1.0, "attention": 1.0, "elementwise": 1.0, "kernel_us": 0.0, "launch_us": 0.0}
)
V3, QWEN2 = sizes_of(real_cell("deepseek_v3")), sizes_of(real_cell("qwen2_57b_a14b"))
PARTS = ("attend", "shared", "dense", "head", "experts")


def gpu(sizes: Sizes = V3, cost: Calibration = IDEAL, graph: bool = True, base: bool = False, **machine: Any) -> Gpu:
    return Gpu(machine=real_machine(**machine), cost=cost, sizes=sizes, graph=graph, base=base)


def parts(device: Gpu, tokens: int = 1, context: int = 32) -> dict[str, Part]:
    return {
        "attend": device.attend(tokens, 1, context),
        "shared": device.shared(tokens),
        "dense": device.dense(tokens),
        "head": device.head(1),
        "experts": device.experts(4.0, 8.0 * tokens),
    }


def test_in_decode_a_part_takes_the_time_of_its_bytes() -> None:
    found, bandwidth = parts(gpu(gpu_tflops=1e12), context=1000), 1555e9
    attention = 2 * (V3.attention_params + V3.fixed_params) + 1000 * 576 * 2 + 256 * 7168 * 4
    assert found["attend"].work_s == pytest.approx(attention / bandwidth)
    assert found["shared"].work_s == pytest.approx(2 * V3.shared_params / bandwidth)
    assert found["dense"].work_s == pytest.approx(2 * V3.dense_params / bandwidth)
    assert found["head"].work_s == pytest.approx(2 * V3.head_params / bandwidth)
    assert found["experts"].work_s == pytest.approx(4 * V3.expert_bytes / bandwidth)


def test_in_prefill_a_part_takes_the_time_of_its_products() -> None:
    found, peak, tokens = parts(gpu(gpu_gb_per_s=1e12), tokens=4096, context=0), 312e12, 4096
    pairs = tokens**2 / 2
    products = 2 * tokens * (V3.attention_params + V3.fixed_params) + pairs * V3.score_flops
    assert found["attend"].work_s == pytest.approx(products / peak)
    assert found["shared"].work_s == pytest.approx(2 * tokens * V3.shared_params / peak)
    assert found["dense"].work_s == pytest.approx(2 * tokens * V3.dense_params / peak)
    assert found["experts"].work_s == pytest.approx(8 * tokens * V3.expert_flops / peak)


def test_only_latent_attention_leaves_out_the_later_half() -> None:
    device = gpu(QWEN2, gpu_gb_per_s=1e12)
    products = 2 * 4096 * QWEN2.attention_params + 4096**2 * QWEN2.score_flops
    assert device.attend(4096, 1, 0).work_s == pytest.approx(products / 312e12)


def test_norms_and_rotations_move_hidden_states_in_prefill() -> None:
    device = gpu(gpu_tflops=1e12)
    weights = 2 * (V3.attention_params + V3.fixed_params) + V3.gate_bytes
    moved = 512 * 16 * 7168 * 2
    assert device.attend(512, 1, 0).work_s == pytest.approx((weights + moved) / 1555e9, rel=1e-3)


def test_the_head_stays_in_bf16() -> None:
    quantised = sizes_of(real_cell("deepseek_v3", precision="int4_g32"))
    assert gpu(quantised).head(1) == gpu().head(1)
    assert gpu(quantised).shared(1).work_s == pytest.approx(gpu().shared(1).work_s / 4)


def test_sequences_of_a_batch_have_keys_of_their_own() -> None:
    device = gpu(gpu_tflops=1e12)
    more_s = device.attend(1, 5, 1000).work_s - device.attend(1, 5, 0).work_s
    assert more_s == pytest.approx(5 * 1000 * 576 * 2 / 1555e9)


def test_shares_of_the_limits_are_those_of_the_calibration() -> None:
    slow = gpu(cost=IDEAL.changed({"gpu_stream": 0.5}))
    assert slow.shared(1).work_s == pytest.approx(2 * gpu().shared(1).work_s)
    slow = gpu(cost=IDEAL.changed({"gemm": 0.5}), gpu_gb_per_s=1e12)
    assert slow.shared(4096).work_s == pytest.approx(2 * gpu(gpu_gb_per_s=1e12).shared(4096).work_s)


@pytest.mark.parametrize(("name", "constants"), [("RTX 4080", ("gemm_consumer", "attention_consumer")),
                                                 ("A100 40 GB PCIe", ("gemm", "attention")),
                                                 ("L20", ("gemm", "attention"))])  # fmt: skip
def test_consumer_devices_have_shares_of_their_own(name: str, constants: tuple[str, str]) -> None:
    was = gpu(gpu=name, cost=COST).attend(8192, 1, 0).work_s
    for constant in ("gemm", "attention", "gemm_consumer", "attention_consumer"):
        now = gpu(gpu=name, cost=COST.changed({constant: 1.0})).attend(8192, 1, 0).work_s
        assert (now < was) == (constant in constants)


def test_a_kernel_takes_cycles() -> None:
    part = Part(work_s=1e-3, kernels=10)
    cost = COST.changed({"kernel_us": 3.0})
    assert gpu(cost=cost).seconds(part) == pytest.approx(1e-3 + 30e-6)
    assert gpu(cost=cost, gpu_ghz=2 * 1.41).seconds(part) == pytest.approx(1e-3 + 15e-6)


def test_launches_cost_nothing_in_a_graph_and_in_base_the_work_waits_for_them() -> None:
    part, cost = Part(work_s=1e-3, kernels=10), COST.changed({"launch_us": 6.0, "kernel_us": 3.0})
    assert gpu(cost=cost, graph=False).launch_s(part) == pytest.approx(60e-6)
    assert gpu(cost=cost).launch_s(part) == 0.0
    base = gpu(cost=cost, graph=False, base=True)
    assert base.launch_s(part) == 0.0
    assert base.seconds(part) == pytest.approx(1e-3 + 10 * 16e-6)


@pytest.mark.parametrize(("sizes", "kernels", "base_kernels"), [(V3, 85, 115), (QWEN2, 55, 75)])
def test_kernels_of_a_layer_are_counted_once(sizes: Sizes, kernels: int, base_kernels: int) -> None:
    for base, wanted in ((False, kernels), (True, base_kernels)):
        found = parts(gpu(sizes, COST, base=base))
        assert found["attend"].kernels + found["shared"].kernels == wanted
    # In a layer without experts the feed-forward part is in place of the shared expert.
    assert found["dense"].kernels == found["shared"].kernels


def test_a_model_without_a_shared_expert_takes_no_time_for_one() -> None:
    device = gpu(sizes_of(real_cell("qwen3_30b_a3b")), COST)
    assert device.shared(512) == Part(work_s=0.0, kernels=0)
    assert device.attend(1, 1, 32).kernels == 55


def test_all_gpus_of_a_machine_work_on_a_part() -> None:
    one, four = gpu().attend(1, 1, 32).work_s, gpu(gpus=4).attend(1, 1, 32).work_s
    assert four == pytest.approx(one / 4)


def test_a_machine_without_a_gpu_is_refused() -> None:
    device = Gpu(machine=testbed(gpu=None), cost=COST, sizes=V3, graph=True, base=False)
    with pytest.raises(ValueError, match="testbed has no GPU"):
        device.attend(1, 1, 32)


@given(
    st.sampled_from(["gpu_gb_per_s", "gpu_tflops", "gpu_ghz", "gpus"]),
    st.sampled_from([V3, QWEN2]),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.floats(1, 4),
)
def test_more_of_a_device_slows_no_part(name: str, sizes: Sizes, tokens: int, context: int, factor: float) -> None:
    more: dict[str, Any] = {name: 2 if name == "gpus" else getattr(real_machine(), name) * factor}
    was, now = gpu(sizes, COST), gpu(sizes, COST, **more)
    before, after = parts(was, tokens, context), parts(now, tokens, context)
    assert all(now.seconds(after[part]) <= was.seconds(before[part]) * (1 + 1e-12) for part in PARTS)


@given(st.sampled_from([V3, QWEN2]), st.integers(1, 2000), st.integers(0, 2000), st.integers(1, 2000))
def test_more_tokens_and_deeper_contexts_are_never_faster(sizes: Sizes, tokens: int, context: int, more: int) -> None:
    device = gpu(sizes, COST)
    few = parts(device, tokens, context)
    for many in (parts(device, tokens + more, context), parts(device, tokens, context + more)):
        assert all(few[part].work_s <= many[part].work_s * (1 + 1e-12) for part in PARTS)
