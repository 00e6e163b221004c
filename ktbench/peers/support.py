"""What a peer cannot run, from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.spec.peers import BY_NAME, Peer
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import expert_bytes

_GIB = 2**30
# What copies of weights may take in one call: a token of the largest models (DeepSeek-V3, Kimi K2) copies 0.7 GiB.
_MOST_COPIED_BYTES = 4 * _GIB


def unsupported(spec: RunSpec) -> str:
    """Why the peer of this cell cannot run it, on whatever machine; empty where it can."""
    return next(_reasons(spec, BY_NAME[spec.system]), "")


def _reasons(spec: RunSpec, peer: Peer) -> Iterator[str]:
    work, model = spec.workload, spec.model
    if spec.engine.device != peer.device:
        yield f"{peer.name} runs with engine.device={peer.device} only, not with engine.device={spec.engine.device}"
    if work.phase not in peer.phases:
        yield f"{peer.name} runs {' and '.join(peer.phases)}, not workload.phase={work.phase}"
    if spec.precision not in peer.types:
        yield f"{peer.name} has no format of as many bits as precision={spec.precision}, it has {_formats(peer)}"
    if work.phase != "layer" and work.routing != "model":
        yield f"{peer.name} routes by the model's own routers, set workload.routing=model"
    if work.phase == "layer" and model.path is not None:
        yield f"workload.phase=layer has synthetic weights: model.path={model.path} is for prefill and decode"
    if spec.system == "transformers" and spec.peer.implementation == "batched_mm":
        yield from _copying_reasons(spec)
    if peer.black_box:
        yield from _black_box_reasons(spec, peer)


def _black_box_reasons(spec: RunSpec, peer: Peer) -> Iterator[str]:
    work = spec.workload
    if spec.device_precision not in peer.types:
        yield f"{peer.name} has no format of as many bits as device_precision={spec.device_precision}"
    if work.shortest is not None:
        yield f"{peer.name} is driven with prompts of equal length, leave workload.shortest=null"
    if work.chunk is not None and not peer.chunks:
        yield f"{peer.name} chooses its own chunks, leave workload.chunk=null"


def _copying_reasons(spec: RunSpec) -> Iterator[str]:
    """`batched_mm` copies the weights of every token's every expert, layer after layer."""
    shape, tokens = spec.model.shape, _pass_tokens(spec)
    copied = tokens * shape.top_k * expert_bytes(shape, "bf16")
    if copied > _MOST_COPIED_BYTES:
        yield (
            f"batched_mm copies the experts of every token: {tokens} tokens in a pass of top_k={shape.top_k} are "
            f"{copied} bytes ({copied / _GIB:.1f} GiB) a layer, allowed are {_MOST_COPIED_BYTES // _GIB} GiB"
        )


def _pass_tokens(spec: RunSpec) -> int:
    work = spec.workload
    return work.batch * (min(work.prompt, work.chunk or work.prompt) if work.phase == "prefill" else 1)


def _formats(peer: Peer) -> str:
    return ", ".join(peer.types)
