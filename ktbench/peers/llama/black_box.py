"""Shared by llama.cpp and llama-bench: a GGUF file, limits, and internals that cannot be observed."""

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
    """Raises Unsupported for settings that it cannot run, and for more than this many sequences."""
    if why := unsupported(spec):
        raise Unsupported(why)
    if spec.workload.batch > most_sequences:
        raise Unsupported(f"workload.batch={spec.workload.batch}: {spec.system} runs at most {most_sequences} here")


def work_of(workload: WorkloadSpec, shape: MoEShape, tensors: Iterable[TensorInfo]) -> Work | None:
    """Exact work of a decode step of one sequence; None if several tokens share experts, which are not counted.

    Bytes are those of the file, each read once: all tensors, k of E routed experts, and one row of the embedding unless
    it is also the head. FLOPs: two for each weight, without attention scores.
    """
    if workload.phase != "decode" or workload.batch != 1:
        return None
    listed = tuple(tensors)
    tied = all(tensor.name != _HEAD for tensor in listed)
    nbytes = sum(_share(tensor, shape, tied) * tensor.nbytes for tensor in listed)
    products = sum(
        _share(tensor, shape, tied) * math.prod(tensor.shape)
        for tensor in listed
        if tied or tensor.name != _EMBEDDING  # one row is looked up, nothing is multiplied
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
    """The header of a file whose digest of weights is `weights` (None: any).

    Raises ValueError in one line for other weights, and like `read_header` for an incomplete file.
    """
    header = read_header(path)
    digest = header.metadata.get(OUR_WEIGHTS, "none named")
    if weights not in (None, digest):
        raise ValueError(f"{path}: holds other weights ({digest}) than those of the model ({weights})")
    return header


def file_of(spec: RunSpec) -> CachedFile:
    """The GGUF file of a cell, which must exist.

    Raises Unsupported if its routed experts have a type other than the precision needs; a file in super-blocks, which
    mixes types, must have some of that type. Raises ValueError like `read_header`.
    """
    file = kept_file(spec)
    tensors = read_header(file.path).tensors.items()
    kinds = {info.kind for name, info in tensors if EXPERTS in name and len(info.shape) == 3}
    mixed = stands_for_all(spec.precision, {PRECISIONS.get(kind, "bf16") for kind in kinds})
    if not mixed and (other := sorted(kinds - {file.experts})):
        held = " and ".join(other)
        raise Unsupported(f"{file.path}: its experts are {held}, precision={spec.precision} needs {file.experts}")
    return file
