"""What llama.cpp and llama-bench share: a GGUF file, limits, and internals that cannot be observed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, NoReturn

from ktbench.engine.gguf.export import CachedFile, kept_file
from ktbench.engine.gguf.families import OUR_WEIGHTS
from ktbench.engine.gguf.header import EXPERTS, PRECISIONS, GgufHeader, TensorInfo, read_header
from ktbench.engine.protocol import ExpertsObservation, Unsupported
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.support import unsupported
from ktbench.spec.weights import stands_for_all

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


class BlackBoxMixin:
    """The part of `System` about experts, features and roles, for a peer that exposes none of them."""

    name: ClassVar[str]

    def observe(self, _step: int | None = None, _seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        """None: the outputs of its experts cannot be read."""
        return ()

    def reference(self, observation: ExpertsObservation) -> NoReturn:
        """Raises ValueError: nothing was observed."""
        raise ValueError(f"{self.name}: layer {observation.layer} was not observed")

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def timeline(self) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported(f"{self.name} does not report when the parts of a step ran")

    def chosen(self) -> Mapping[str, int]:
        """None: it has none of our features."""
        return {}


def require(spec: RunSpec, most_sequences: int) -> None:
    """Raises Unsupported for what its cell cannot be run as, and for more than so many sequences."""
    if why := unsupported(spec):
        raise Unsupported(why)
    if spec.workload.batch > most_sequences:
        raise Unsupported(f"workload.batch={spec.workload.batch}: {spec.system} runs at most {most_sequences} here")


def work_of(workload: WorkloadSpec, shape: MoEShape, tensors: Iterable[TensorInfo]) -> Work | None:
    """Work of a decode step of one sequence, exactly; None where several tokens share experts that are not counted.

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
    if EXPERTS in tensor.name:
        return Fraction(shape.top_k, shape.experts)
    if tensor.name == _EMBEDDING and not tied:
        return Fraction(1, tensor.shape[0])
    return Fraction(1)


def read_weights(path: Path, weights: str | None) -> GgufHeader:
    """The header of a file that names `weights`, a digest, as its own (None: any).

    Raises ValueError in one line for other weights, and as `read_header` for a file that is not whole.
    """
    header = read_header(path)
    digest = header.metadata.get(OUR_WEIGHTS, "none named")
    if weights not in (None, digest):
        raise ValueError(f"{path}: holds other weights ({digest}) than those of the model ({weights})")
    return header


def file_of(spec: RunSpec) -> CachedFile:
    """The GGUF file of a cell, which must be there.

    Raises Unsupported where its routed experts are of another type than the precision needs; a file in super-blocks,
    which mixes types, has some of that type. Raises ValueError as `read_header`.
    """
    file = kept_file(spec)
    tensors = read_header(file.path).tensors.items()
    kinds = {info.kind for name, info in tensors if EXPERTS in name and len(info.shape) == 3}
    mixed = stands_for_all(spec.precision, {PRECISIONS.get(kind, "bf16") for kind in kinds})
    if not mixed and (other := sorted(kinds - {file.experts})):
        held = " and ".join(other)
        raise Unsupported(f"{file.path}: its experts are {held}, precision={spec.precision} needs {file.experts}")
    return file
