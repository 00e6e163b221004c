"""What plain Transformers cannot run, told from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.core.spec import RunSpec
from ktbench.core.weights import expert_bytes
from ktbench.peers import support

_GIB = 2**30
# What copies of weights may take in one call: a token of the largest models (DeepSeek-V3, Kimi K2) copies 0.7 GiB.
MOST_COPIED_BYTES = 4 * _GIB


def unsupported(spec: RunSpec) -> str:
    """Why plain Transformers cannot run a cell of prefill or decode; empty where it can."""
    return support.unsupported(spec) or next(_reasons(spec), "")


def _reasons(spec: RunSpec) -> Iterator[str]:
    if spec.workload.phase == "layer":
        yield "plain Transformers as a whole runs prefill and decode, not workload.phase=layer"
    if spec.engine.device != "cpu":
        yield f"plain Transformers is run on the CPU, not with engine.device={spec.engine.device}"
    if spec.peer.implementation == "batched_mm" and copied_bytes(spec) > MOST_COPIED_BYTES:
        yield (
            f"batched_mm copies the experts of every token: {_pass_tokens(spec)} tokens in a pass, "
            f"top_k={spec.model.shape.top_k}, {expert_bytes(spec.model.shape, 'bf16')} bytes an expert are "
            f"{copied_bytes(spec)} bytes ({copied_bytes(spec) / _GIB:.1f} GiB), allowed are "
            f"{MOST_COPIED_BYTES // _GIB} GiB"
        )


def copied_bytes(spec: RunSpec) -> int:
    """Bytes of weights that `batched_mm` copies in one layer of one pass: those of every token's every expert."""
    shape = spec.model.shape
    return _pass_tokens(spec) * shape.top_k * expert_bytes(shape, "bf16")


def _pass_tokens(spec: RunSpec) -> int:
    work = spec.workload
    return work.batch * (min(work.prompt, work.chunk or work.prompt) if work.phase == "prefill" else 1)
