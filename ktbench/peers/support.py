"""What a peer cannot run, told from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.core.peers import BY_NAME, Peer
from ktbench.core.spec import RunSpec


def unsupported(spec: RunSpec) -> str:
    """Why the peer of this cell cannot run it, on whatever machine; empty where it can."""
    return next(_reasons(spec, BY_NAME[spec.system]), "")


def _reasons(spec: RunSpec, peer: Peer) -> Iterator[str]:
    work, model = spec.workload, spec.model
    if spec.system == "fiddler" and spec.engine.device == "cpu":
        yield "fiddler: without a CUDA device there is nothing to copy experts to: what is left of the scheme is base"
    if work.phase not in peer.phases:
        yield f"{peer.name} runs {' and '.join(peer.phases)}, not workload.phase={work.phase}"
    if spec.precision not in peer.types:
        yield f"{peer.name} has no format of as many bits as precision={spec.precision}, it has {_formats(peer)}"
    if work.phase != "layer" and work.routing != "model":
        yield f"{peer.name} routes by the model's own routers, set workload.routing=model"
    if work.phase == "layer" and model.path is not None:
        yield f"workload.phase=layer has synthetic weights: model.path={model.path} is for prefill and decode"
    if peer.opaque:
        yield from _opaque_reasons(spec, peer)


def _opaque_reasons(spec: RunSpec, peer: Peer) -> Iterator[str]:
    work = spec.workload
    if spec.device_precision not in peer.types:
        yield f"{peer.name} has no format of as many bits as device_precision={spec.device_precision}"
    if work.shortest is not None:
        yield f"{peer.name} is driven with prompts of equal length, leave workload.shortest=null"
    if work.chunk is not None and spec.system == "llama-bench":
        yield "llama-bench chooses its own chunks, leave workload.chunk=null"


def _formats(peer: Peer) -> str:
    return ", ".join(peer.types)
