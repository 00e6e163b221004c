"""What one token has to read and multiply, from the tensors of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from ktbench.engine.gguf.tensors import TensorInfo
from ktbench.spec.record import Work
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_EXPERTS = "_exps."


def work_of(workload: WorkloadSpec, shape: MoEShape, tensors: Iterable[TensorInfo]) -> Work | None:
    """Work of a decode step of one sequence, exactly; None where several tokens share experts that nobody counts.

    Bytes are those of the file, each read once: all tensors, of the routed experts k of E, of the embedding one row
    where it is not the head as well. FLOPs: two for each weight, attention scores left out.
    """
    if workload.phase != "decode" or workload.batch != 1:
        return None
    listed = tuple(tensors)
    tied = all(tensor.name != _HEAD for tensor in listed)
    nbytes = sum(_share(tensor, shape, tied) * tensor.nbytes for tensor in listed)
    products = sum(
        _share(tensor, shape, tied) * math.prod(tensor.shape)
        for tensor in listed
        if tied or tensor.name != _EMBEDDING  # a row of it is looked up, not multiplied
    )
    return Work(weight_bytes=int(nbytes), flops=2 * int(products), tokens=1)


def _share(tensor: TensorInfo, shape: MoEShape, tied: bool) -> Fraction:
    """The part of a tensor that one token reads."""
    if _EXPERTS in tensor.name:
        return Fraction(shape.top_k, shape.experts)
    if tensor.name == _EMBEDDING and not tied:
        return Fraction(1, tensor.shape[0])
    return Fraction(1)
