"""The feature table: one row per optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ktbench.spec.features.record import Best, Feature, Phase
from ktbench.spec.limits import Limit
from ktbench.spec.weights import DEVICE_UNPACKS

if TYPE_CHECKING:
    from ktbench.spec.run_spec import RunSpec

FUSED = ("avx2", "avx512", "amx")  # one of them runs the fused operator
# At least so many of a token's experts stay immediate, for accuracy (KTransformers, section 4.2).
MIN_IMMEDIATE_EXPERTS = 2
_INFERENCE: tuple[Phase, ...] = ("prefill", "decode", "layer", "serve")
NETWORKS: tuple[Phase, ...] = ("prefill", "decode", "serve")
_ON_CUDA = Limit(lambda spec: spec.engine.device == "cpu", "needs a CUDA device, set engine.device=cuda")


def _chooses_streaming(spec: RunSpec) -> bool:
    """Whether a chunk of a prompt, as a graph captures it, may stream its experts."""
    work, streamed = spec.workload, spec.engine.device_prefill_tokens
    if work.phase != "prefill" or not work.has_whole_chunk:
        return False
    return streamed == "auto" or 0 < streamed <= work.batch * (work.chunk or 0)


_SHIPPED: tuple[Feature, ...] = (
    Feature(
        name="avx2",
        letter="a",
        title="fused MoE kernel, AVX2",
        off=False,
        needs=("avx2",),
        counter="avx2_calls",
        kernel_argument=True,
        simulated=True,
        best=Best(unless=("avx512", "amx")),
    ),
    Feature(
        name="avx512",
        letter="v",
        title="fused MoE kernel, AVX-512",
        off=False,
        needs=("avx512",),
        counter="avx512_calls",
        kernel_argument=True,
        simulated=True,
        best=Best(),
    ),
    Feature(
        name="amx",
        letter="m",
        title="fused MoE kernel, Intel AMX",
        off=False,
        needs=("amx",),
        counter="amx_tiles",
        kernel_argument=True,
        simulated=True,
        best=Best(),
    ),
    Feature(
        name="dynamic",
        letter="d",
        title="dynamic work scheduling",
        off=False,
        requires=FUSED,
        counter="tasks_dynamic",
        kernel_argument=True,
        simulated=True,
        best=Best(),
    ),
    Feature(
        name="numa",
        letter="n",
        title="NUMA-aware tensor parallelism",
        off=False,
        needs=("numa",),
        requires=FUSED,
        limits=(
            Limit(
                lambda spec: spec.maps_packed,
                "experts that model.packed keeps are not split over domains, leave out model.packed",
            ),
            Limit(
                lambda spec: spec.engine.threads is not None and spec.engine.threads < (spec.engine.domains or 1),
                lambda spec: (
                    f"engine.domains={spec.engine.domains} needs as many threads, engine.threads={spec.engine.threads}"
                ),
            ),
        ),
        counter="local_bytes",
        kernel_argument=True,
        simulated=True,
        best=Best(),
    ),
    Feature(
        name="cuda_graph",
        letter="c",
        title="CUDA Graph",
        off=False,
        needs=("cuda",),
        limits=(
            _ON_CUDA,
            Limit(
                lambda spec: not spec.engine.fused,
                "a CUDA graph cannot replay the Python experts of base, add +a, +v or +m",
            ),
            Limit(
                lambda spec: spec.workload.phase == "prefill" and not spec.workload.has_whole_chunk,
                lambda spec: f"captures whole chunks of a prompt, set workload.chunk to {spec.workload.prompt} or less",
            ),
            Limit(
                _chooses_streaming,
                "a graph cannot choose which experts stream, leave out engine.device_prefill_tokens",
            ),
        ),
        phases=_INFERENCE,
        counter="graph_replays",
        simulated=True,
        best=Best(phases=("decode", "serve"), device="cuda"),
    ),
    Feature(
        name="packed_dense",
        letter="l",
        title="packed dense layers and recorded steps on the device role",
        off=False,
        requires=FUSED,
        limits=(
            Limit(
                lambda spec: spec.engine.device == "cuda",
                "packs linear layers for the CPU, leave it out with engine.device=cuda",
            ),
        ),
        phases=NETWORKS,
        counter="linear_calls",
        simulated=True,
        best=Best(phases=NETWORKS, device="cpu"),
    ),
    Feature(
        name="deferral",
        title="Expert Deferral",
        off=0,
        names=("auto",),
        limits=(
            Limit(
                lambda spec: spec.model.shape.moe_layers < 2,
                lambda spec: f"needs 2 MoE layers or more, {spec.model.name} has {spec.model.shape.moe_layers} here",
            ),
            Limit(
                lambda spec: (
                    spec.engine.deferral == "auto" and not (spec.engine.roles_concurrent and spec.engine.fused)
                ),
                "needs engine.roles=split or engine.device=cuda, and +a, +v or +m",
            ),
            Limit(
                lambda spec: spec.engine.deferral == "auto" and spec.model.shape.top_k <= MIN_IMMEDIATE_EXPERTS,
                lambda spec: (
                    f"keeps {MIN_IMMEDIATE_EXPERTS} immediate experts, "
                    f"{spec.model.name} has top_k={spec.model.shape.top_k}"
                ),
            ),
        ),
        phases=NETWORKS,
        counter="deferred_experts",
        routes=True,
        alters_outputs=True,
        simulated=True,
    ),
    Feature(
        name="skipping",
        title="Expert Skipping (control)",
        off=0,
        phases=NETWORKS,
        counter="skipped_experts",
        routes=True,
        alters_outputs=True,
        simulated=True,
    ),
    Feature(
        name="device_prefill_tokens",
        title="layerwise prefill on the device, from so many tokens on",
        off=0,
        names=("auto",),
        needs=("cuda",),
        requires=FUSED,
        limits=(
            _ON_CUDA,
            Limit(
                lambda spec: spec.precision not in DEVICE_UNPACKS,
                lambda spec: f"a device unpacks {', '.join(DEVICE_UNPACKS)}, not precision={spec.precision}",
            ),
            Limit(lambda spec: spec.engine.numa, "experts that are split over domains do not stream, leave out +n"),
            Limit(
                lambda spec: spec.engine.placement.policy != "host",
                "all experts pass through the device, leave out engine.placement",
            ),
        ),
        phases=("prefill",),
        counter="streamed_bytes",
        simulated=True,
    ),
    Feature(
        name="handover",
        title="hand-over to the host by flags in memory",
        off="host_function",
        names=("host_function", "flags"),
        needs=("cuda", "stream_memory"),
        requires=FUSED,
        limits=(_ON_CUDA,),
        counter="flag_answers",
    ),
    Feature(
        name="batching",
        letter="b",
        title="continuous batching of requests",
        off=False,
        phases=("serve",),
        counter="batched_tokens",
        best=Best(phases=("serve",)),
    ),
    Feature(
        name="chunked_prefill",
        letter="k",
        title="chunked prefill beside decode",
        off=False,
        phases=("serve",),
        counter="prefill_chunks",
        best=Best(phases=("serve",)),
    ),
    Feature(
        name="prefix_cache",
        letter="p",
        title="prefix cache of prompts",
        off=False,
        phases=("serve",),
        counter="cached_prompt_tokens",
        best=Best(phases=("serve",)),
    ),
    Feature(
        name="static_batch",
        title="static batches of requests (control)",
        off=0,
        phases=("serve",),
        counter="static_batch_tokens",
    ),
)

BY_NAME: dict[str, Feature] = {feature.name: feature for feature in _SHIPPED}
FEATURES = BY_NAME.values()  # those of a user's own file come later
