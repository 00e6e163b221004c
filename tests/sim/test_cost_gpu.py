"""Parts on a GPU: closed forms where nothing is lost, and what more of a constant may do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.cost_gpu import GpuCosts, gpu_costs
from ktbench.sim.workloads import Pass
from ktbench.spec.step.work import sizes_of
from tests.sim.real import real_cell, real_machine

COST = read_calibration("ktransformers")
IDEAL = COST.changed(
    {"gpu_stream": 1.0, "gemm": 1.0, "attention": 1.0, "elementwise": 1.0, "kernel_us": 0.0, "launch_us": 0.0}
)
NAMES = ("deepseek_v3", "qwen2_57b_a14b")
V3, QWEN2 = (sizes_of(real_cell(name)) for name in NAMES)


def gpu(
    model: str = "deepseek_v3", cost: Calibration = IDEAL, graph: bool = True, precision: str = "bf16", **machine: Any
) -> GpuCosts:
    return gpu_costs(real_cell(model, machine=real_machine(**machine), cuda_graph=graph, precision=precision), cost)


def base(model: str = "deepseek_v3", cost: Calibration = IDEAL) -> GpuCosts:
    return gpu_costs(real_cell(model, avx512=False, dynamic=False, numa=False, cuda_graph=False), cost)


def work(tokens: int = 1, context: int = 0, batch: int = 1) -> Pass:
    return Pass(tokens=tokens, batch=batch, context=context)


def attention_s(device: GpuCosts, tokens: int = 1, context: int = 0, batch: int = 1) -> float:
    return device.attention(work(tokens, context, batch)).seconds


def shared_s(device: GpuCosts, tokens: int = 1) -> float:
    shared = device.shared(work(tokens))
    assert shared is not None
    return shared.seconds


def parts_s(device: GpuCosts, tokens: int = 1, context: int = 32) -> dict[str, float]:
    one = work(tokens, context)
    return {
        "attention": device.attention(one).seconds,
        "shared": shared_s(device, tokens),
        "dense": device.dense(one).seconds,
        "head": device.head(one).seconds,
        "experts": device.experts(one, 4.0, 8.0 * tokens).seconds,
    }


def test_in_decode_a_part_takes_the_time_of_its_bytes() -> None:
    found, bandwidth = parts_s(gpu(gpu_tflops=1e12), context=1000), 1555e9
    attention = 2 * (V3.attention_params + V3.fixed_params) + 1000 * 576 * 2 + 256 * 7168 * 4
    assert found["attention"] == pytest.approx(attention / bandwidth)
    assert found["shared"] == pytest.approx(2 * V3.shared_params / bandwidth)
    assert found["dense"] == pytest.approx(2 * V3.dense_params / bandwidth)
    assert found["head"] == pytest.approx(2 * V3.head_params / bandwidth)
    assert found["experts"] == pytest.approx(4 * V3.expert_bytes / bandwidth)


def test_in_prefill_a_part_takes_the_time_of_its_products() -> None:
    found, peak, tokens = parts_s(gpu(gpu_gb_per_s=1e12), tokens=4096, context=0), 312e12, 4096
    products = 2 * tokens * (V3.attention_params + V3.fixed_params) + tokens**2 / 2 * V3.score_flops
    assert found["attention"] == pytest.approx(products / peak)
    assert found["shared"] == pytest.approx(2 * tokens * V3.shared_params / peak)
    assert found["dense"] == pytest.approx(2 * tokens * V3.dense_params / peak)
    assert found["experts"] == pytest.approx(8 * tokens * V3.expert_flops / peak)


def test_only_latent_attention_leaves_out_the_later_half() -> None:
    products = 2 * 4096 * QWEN2.attention_params + 4096**2 * QWEN2.score_flops
    assert attention_s(gpu("qwen2_57b_a14b", gpu_gb_per_s=1e12), 4096) == pytest.approx(products / 312e12)


def test_norms_and_rotations_move_hidden_states_in_prefill() -> None:
    weights = 2 * (V3.attention_params + V3.fixed_params) + V3.gate_bytes
    moved = 512 * 16 * 7168 * 2
    assert attention_s(gpu(gpu_tflops=1e12), 512) == pytest.approx((weights + moved) / 1555e9, rel=1e-3)


def test_the_head_stays_in_bf16() -> None:
    quantised = gpu(precision="int4_g32")
    assert quantised.head(work()) == gpu().head(work())
    assert shared_s(quantised) == pytest.approx(shared_s(gpu()) / 4)


def test_sequences_of_a_batch_have_keys_of_their_own() -> None:
    device = gpu(gpu_tflops=1e12)
    more_s = attention_s(device, context=1000, batch=5) - attention_s(device, batch=5)
    assert more_s == pytest.approx(5 * 1000 * 576 * 2 / 1555e9)


def test_shares_of_the_limits_are_those_of_the_calibration() -> None:
    assert shared_s(gpu(cost=IDEAL.changed({"gpu_stream": 0.5}))) == pytest.approx(2 * shared_s(gpu()))
    slow = gpu(cost=IDEAL.changed({"gemm": 0.5}), gpu_gb_per_s=1e12)
    assert shared_s(slow, 4096) == pytest.approx(2 * shared_s(gpu(gpu_gb_per_s=1e12), 4096))


@pytest.mark.parametrize(("name", "constants"), [("RTX 4080", ("gemm_consumer", "attention_consumer")),
                                                 ("A100 40 GB PCIe", ("gemm", "attention")),
                                                 ("L20", ("gemm", "attention"))])  # fmt: skip
def test_consumer_devices_have_shares_of_their_own(name: str, constants: tuple[str, str]) -> None:
    was = attention_s(gpu(gpu=name, cost=COST), 8192)
    for constant in ("gemm", "attention", "gemm_consumer", "attention_consumer"):
        now = attention_s(gpu(gpu=name, cost=COST.changed({constant: 1.0})), 8192)
        assert (now < was) == (constant in constants)


def test_a_kernel_takes_cycles() -> None:
    """The head has 2 kernels."""
    cost = IDEAL.changed({"kernel_us": 3.0})
    free_s = gpu().head(work()).seconds
    assert gpu(cost=cost).head(work()).seconds == pytest.approx(free_s + 6e-6)
    assert gpu(cost=cost, gpu_ghz=2 * 1.41).head(work()).seconds == pytest.approx(free_s + 3e-6)


def test_launches_cost_nothing_in_a_graph_and_in_base_the_work_waits_for_them() -> None:
    cost = IDEAL.changed({"launch_us": 6.0, "base_launch_us": 16.0})
    assert gpu(cost=cost, graph=False).head(work()).launch_s == pytest.approx(12e-6)
    assert gpu(cost=cost).head(work()).launch_s == 0.0
    head, free = base(cost=cost).head(work()), base(cost=IDEAL.changed({"base_launch_us": 0.0})).head(work())
    assert head.launch_s == 0.0
    assert head.seconds == pytest.approx(free.seconds + 2 * 16e-6)


@pytest.mark.parametrize(
    ("model", "kernels", "base_kernels"),
    [("deepseek_v3", 85, 115), ("qwen2_57b_a14b", 55, 75), ("qwen3_30b_a3b", 55, 75)],
)
def test_kernels_of_a_layer_are_counted_once(model: str, kernels: int, base_kernels: int) -> None:
    """With a microsecond a launch; in base the time without launches is taken off."""
    device = gpu(model, IDEAL.changed({"launch_us": 1.0}), graph=False)
    attention, shared, dense = device.attention(work()), device.shared(work()), device.dense(work())
    assert attention.launch_s + (shared.launch_s if shared else 0.0) == pytest.approx(kernels * 1e-6)
    # In a layer without experts the feed-forward part is in place of the shared expert.
    assert shared is None or dense.launch_s == shared.launch_s
    slow, free = (base(model, IDEAL.changed({"base_launch_us": us})) for us in (1.0, 0.0))
    launches_s = [slow.attention(work()).seconds - free.attention(work()).seconds]
    launches_s += [shared_s(slow) - shared_s(free)] if shared else []
    assert sum(launches_s) == pytest.approx(base_kernels * 1e-6)


def test_a_model_without_a_shared_expert_has_no_task_for_one() -> None:
    assert gpu("qwen3_30b_a3b", COST).shared(work(512)) is None


def test_all_gpus_of_a_machine_work_on_a_part() -> None:
    assert attention_s(gpu(gpus=4), context=32) == pytest.approx(attention_s(gpu(), context=32) / 4)


def reduce_s(tokens: int, gpus: int, nvlink: float | None = None) -> float:
    sources = real_machine().sources | {"nvlink_gb_per_s": "made up for a test"}
    task = gpu(cost=COST, gpus=gpus, nvlink_gb_per_s=nvlink, sources=sources).all_reduce(work(tokens))
    return 0.0 if task is None else task.seconds


def test_one_gpu_has_nothing_to_add_up() -> None:
    assert gpu(cost=COST).all_reduce(work(512)) is None


@pytest.mark.parametrize(
    ("tokens", "gpus", "nvlink", "seconds"),
    [
        # Six steps of LL, and 1.5 times 14,336 bytes at half of 24 GB/s.
        (1, 4, None, 12.6e-6 + 1.792e-6),
        # 14 steps of Simple, and 1.75 times 117.4 MB at 24 GB/s.
        (8192, 8, None, 88.2e-6 + 8.563371e-3),
        # Two steps of LL over NVLink, and 14,336 bytes at half of 337.5 GB/s.
        (1, 2, 450.0, 7.8e-6 + 0.084954e-6),
        # Two steps of Simple over NVLink, and 117.4 MB at 337.5 GB/s.
        (8192, 2, 450.0, 15.2e-6 + 347.972e-6),
    ],
)
def test_an_all_reduce_is_a_ring_by_the_faster_protocol(
    tokens: int, gpus: int, nvlink: float | None, seconds: float
) -> None:
    """Of DeepSeek-V3's hidden states, 7,168 numbers of bf16 a token; latencies are those of NCCL's table."""
    assert reduce_s(tokens, gpus, nvlink) == pytest.approx(seconds, rel=1e-5)


@given(st.integers(1, 15), st.integers(1, 40_000), st.integers(1, 40_000), st.sampled_from([None, 450.0]))
def test_an_all_reduce_grows_with_gpus_and_with_bytes(count: int, tokens: int, more: int, nvlink: float | None) -> None:
    many_s = reduce_s(tokens, count + 1, nvlink)
    assert reduce_s(tokens, count, nvlink) < many_s < reduce_s(tokens + more, count + 1, nvlink)


@given(
    st.sampled_from(["gpu_gb_per_s", "gpu_tflops", "gpu_ghz", "gpus"]),
    st.sampled_from(NAMES),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.floats(1, 4),
)
def test_more_of_a_device_slows_no_part(name: str, model: str, tokens: int, context: int, factor: float) -> None:
    more: dict[str, Any] = {name: 2 if name == "gpus" else getattr(real_machine(), name) * factor}
    before, after = (parts_s(gpu(model, COST, **changes), tokens, context) for changes in ({}, more))
    assert all(after[part] <= before[part] * (1 + 1e-12) for part in before)


@given(st.sampled_from(NAMES), st.integers(1, 2000), st.integers(0, 2000), st.integers(1, 2000))
def test_more_tokens_and_deeper_contexts_are_never_faster(model: str, tokens: int, context: int, more: int) -> None:
    device = gpu(model, COST)
    few = parts_s(device, tokens, context)
    for many in (parts_s(device, tokens + more, context), parts_s(device, tokens, context + more)):
        assert all(few[part] <= many[part] * (1 + 1e-12) for part in few)


def streaming(tokens: int, asked: int | str = 1, cost: Calibration = IDEAL, **machine: Any) -> GpuCosts:
    """A prefill of int4 experts of DeepSeek-V3."""
    return gpu_costs(
        real_cell(
            machine=real_machine(**machine),
            precision="int4_g32",
            phase="prefill",
            work={"prompt": tokens, "routing": "balanced"},
            numa=False,
            device_prefill_tokens=asked,
        ),
        cost,
    )


def streamed_s(device: GpuCosts, tokens: int) -> float:
    task = device.device_experts(work(tokens), 3)
    assert task is not None
    return task.seconds


def test_experts_that_stream_take_the_time_of_the_link_at_few_tokens() -> None:
    """All 256 experts of a layer in 4 bits over PCIe 4.0 x16, at the share of its bandwidth that copies reach."""
    layer_bytes = 256 * 3 * 7168 * 2048 / 2
    device = streaming(512)
    assert streamed_s(device, 512) == pytest.approx(layer_bytes / (0.8 * 32e9), rel=1e-6)
    assert device.routed_s(work(512), 3, 0, 8) == 0.0


def test_they_take_the_time_of_the_products_at_many_tokens() -> None:
    """What a layer's products take does not depend on the link, which is then the faster of the two."""
    tokens, model = 262_144, {"gpu_gb_per_s": 1e9}
    flops = tokens * 8 * 2 * 3 * 7168 * 2048
    device = streaming(tokens, **model)
    assert streamed_s(device, tokens) == pytest.approx(flops / (312e12), rel=1e-3)
    assert streamed_s(streaming(tokens, link_gb_per_s=16.0, **model), tokens) == streamed_s(device, tokens)


def test_each_gpu_gets_its_part_over_its_own_link() -> None:
    assert streamed_s(streaming(512, gpus=4), 512) == pytest.approx(streamed_s(streaming(512), 512) / 4)


def test_what_the_host_writes_first_is_not_hidden() -> None:
    writing = IDEAL.changed({"stream_write_ms_per_mb": 0.02})
    more_s = streamed_s(streaming(512, cost=writing), 512) - streamed_s(streaming(512), 512)
    assert more_s == pytest.approx(0.02e-3 * 256 * 3 * 7168 * 2048 / 2 / 1e6)


def test_auto_streams_where_it_takes_less_time() -> None:
    prompts = [2**n for n in range(6, 17)]
    streams = [streaming(tokens, "auto", COST).streams(work(tokens)) for tokens in prompts]
    assert streams == sorted(streams) and set(streams) == {False, True}
    first = streams.index(True)
    few, many = (prompts[at] for at in (first - 1, -1))
    assert streamed_s(streaming(few, 1, COST), few) > streaming(few, 0, COST).routed_s(work(few), 0, 0, 8)
    assert streamed_s(streaming(many, 1, COST), many) < streaming(many, 0, COST).routed_s(work(many), 0, 0, 8)
