"""Finds quantised matrices by the names, types and shapes of tensors; what is neither is refused by name.

Letters: N rows (outputs), K columns (inputs), E experts, G groups of columns that share a scale. Names and shapes are
those of DeepSeek-V3 (`weight_scale_inv`), compressed-tensors, ModelOpt, AutoGPTQ, AutoAWQ and gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil

from ktbench.engine.stored.matrices import (
    FP8_SIDE,
    NVFP4_GROUP,
    Layout,
    StoredMatrix,
    StoredTensor,
    StoredWeights,
)
from ktbench.engine.stored.methods import Method
from ktbench.spec.weights import FORMATS, Precision

_NUMBERS = ("BF16", "F16", "F32")  # as safetensors names them
_E4M3 = "F8_E4M3"
_DIMENSIONS: Mapping[Layout, tuple[int, ...]] = {"fp8": (2, 3), "mxfp4": (4,)}
_WITH_ZEROS: Mapping[str, Layout] = {"gptq": "gptq", "awq": "awq"}
_PER_WORD = 8  # nibbles of an int32
_STACKED = ("gate_up_proj", "down_proj")
_BLOCKS, _BLOCKS_SCALES = "_blocks", "_scales"
# What makes a matrix beside its weights; none is left over.
_SCALES = (
    *("weight_scale_inv", "weight_scale", "weight_scale_2", "weight_global_scale", "weight_shape", "scales"),
    *(f"{matrix}_{scale}" for matrix in _STACKED for scale in ("scale_inv", "scale")),
)
# Buffers that old versions of Transformers saved, computed anew by this one.
BUFFERS = ("rotary_emb.inv_freq", "position_ids")
_INTEGERS = (".tid2eid",)  # of DeepSeek-V4, the experts of every token
_EXPERT = re.compile(r"(.*\.experts\.\d+)\.(\w+)\.weight")


def read_weights(tensors: Mapping[str, StoredTensor], method: Method) -> StoredWeights:
    """What the tensors of a folder are.

    Raises ValueError naming the first tensor that is neither plain numbers nor part of a matrix that is read, that is
    missing beside another, or has a shape which does not go with it, and for experts of mixed formats.
    """
    reading = _Reading(tensors, method)
    found = [reading.matrix(name, layout) for name, layout in _quantised(tensors, method)]
    weights = StoredWeights(tensors=tensors, matrices={one.name: one for one in found})
    _require_known(weights, method)
    _require_alike(weights)
    return weights


def _quantised(tensors: Mapping[str, StoredTensor], method: Method) -> Iterator[tuple[str, Layout]]:
    """Names of the tensors that hold quantised weights, and their layouts."""
    for name, one in tensors.items():
        last = name.rpartition(".")[2]
        if one.kind == _E4M3 and last in ("weight", *_STACKED):
            yield name, "fp8"
        elif one.kind == "U8" and last in ("weight", "weight_packed"):
            yield name, "nvfp4"
        elif last == "weight_packed" and method.name == "compressed-tensors":
            yield name, "int4"
        elif last == "qweight" and method.name in _WITH_ZEROS:
            yield name, _WITH_ZEROS[method.name]
        elif name.endswith(_BLOCKS) and method.name == "mxfp4":
            yield name, "mxfp4"


class _Reading:
    """Finds the other parts of a matrix by the name of its weights."""

    def __init__(self, tensors: Mapping[str, StoredTensor], method: Method) -> None:
        self._tensors, self._method = tensors, method
        self._readers: Mapping[Layout, Callable[[str], StoredMatrix]] = {
            "fp8": self._fp8,
            "int4": self._int4,
            **{layout: partial(self._with_zeros, layout) for layout in _WITH_ZEROS.values()},
            "nvfp4": self._nvfp4,
            "mxfp4": self._mxfp4,
        }

    def matrix(self, name: str, layout: Layout) -> StoredMatrix:
        """The matrix whose weights are tensor `name`."""
        if len(self._tensors[name].shape) not in _DIMENSIONS.get(layout, (2,)):
            raise self._wrong(name, f"weights stored as {layout} do not have so many dimensions")
        return self._readers[layout](name)

    def _fp8(self, name: str) -> StoredMatrix:
        """`weight` [N, K] of e4m3; scales of squares, of rows or of all in `weight_scale_inv` or `weight_scale`."""
        shape = self._tensors[name].shape
        scale = self._part(name, f"{name}_scale_inv", f"{name}_scale", kinds=(*_NUMBERS, "F8_E8M0"))
        *stack, rows, columns = shape
        squares, single = (ceil(rows / FP8_SIDE), ceil(columns / FP8_SIDE)), [(), (1,), (rows,)]
        allowed = [(*stack, *one) for one in (squares, (rows, 1), (1, 1))] + ([] if stack else single)
        self._require_shape(name, scale, *allowed)
        parts, file = {"weight": name, "scale": scale}, self._tensors[name].file
        return StoredMatrix(name=name, layout="fp8", format="fp8", shape=shape, file=file, parts=parts)

    def _nvfp4(self, name: str) -> StoredMatrix:
        """Codes [N, K / 2], scales [N, K / 16] of e4m3, and one for all in float32."""
        owner, _, last = name.rpartition(".")
        rows, half = self._tensors[name].shape
        scale = self._part(name, f"{owner}.weight_scale", kinds=(_E4M3,))
        both = self._part(name, f"{owner}.weight_scale_2", f"{owner}.weight_global_scale", kinds=("F32",))
        self._require_shape(name, scale, (rows, 2 * half // NVFP4_GROUP))
        self._require_shape(name, both, (), (1,))
        return StoredMatrix(
            name=f"{owner}.weight",
            layout="nvfp4",
            format="nvfp4",
            shape=(rows, 2 * half),
            file=self._tensors[name].file,
            parts={"weight": name, "scale": scale, "global": both},
            divides=last == "weight_packed",
        )

    def _mxfp4(self, name: str) -> StoredMatrix:
        """`NAME_blocks` [E, N, K / 32, 16], two codes of e2m1 a byte; `NAME_scales` [E, N, K / 32] are e8m0."""
        owner, shape = name.removesuffix(_BLOCKS), self._tensors[name].shape
        scale = self._part(name, owner + _BLOCKS_SCALES, kinds=("U8",))
        self._require_shape(name, scale, shape[:-1])
        if shape[-1] != FORMATS["mxfp4"].group // 2:
            raise self._wrong(name, f"the last dimension must be {FORMATS['mxfp4'].group // 2}")
        return StoredMatrix(
            name=owner,
            layout="mxfp4",
            format="mxfp4",
            shape=(*shape[:2], shape[2] * FORMATS["mxfp4"].group),
            file=self._tensors[name].file,
            parts={"weight": name, "scale": scale},
        )

    def _int4(self, name: str) -> StoredMatrix:
        """`weight_packed` int32 [N, K / 8], `weight_scale` [N, G]; every number is raised by 8."""
        owner = name.rpartition(".")[0]
        rows, words = self._tensors[name].shape
        scale, shape = self._part(name, f"{owner}.weight_scale"), (rows, words * _PER_WORD)
        groups = self._tensors[scale].shape[-1:]
        self._require_shape(name, scale, (rows, *groups))
        self._require_groups(scale, shape[1], *groups)
        others = {"shape": f"{owner}.weight_shape", "order": f"{owner}.weight_g_idx"}
        return StoredMatrix(
            name=f"{owner}.weight",
            layout="int4",
            format=self._format(scale),
            shape=shape,
            file=self._tensors[name].file,
            parts={"weight": name, "scale": scale} | self._if_there(others),
            groups=groups[0],
        )

    def _with_zeros(self, layout: Layout, name: str) -> StoredMatrix:
        """`qweight` int32, [K / 8, N] of GPTQ and [K, N / 8] of AWQ; `scales` [G, N] and `qzeros` [G, N / 8]."""
        owner = name.rpartition(".")[0]
        high, wide = self._tensors[name].shape
        columns, rows = (high * _PER_WORD, wide) if layout == "gptq" else (high, wide * _PER_WORD)
        scale, zeros = self._part(name, f"{owner}.scales"), self._part(name, f"{owner}.qzeros", kinds=("I32",))
        groups = self._tensors[scale].shape[:1]
        self._require_shape(name, scale, (*groups, rows))
        self._require_shape(name, zeros, (*groups, rows // _PER_WORD))
        self._require_groups(scale, columns, *groups)
        parts = {"weight": name, "scale": scale, "zeros": zeros} | self._if_there({"order": f"{owner}.g_idx"})
        return StoredMatrix(
            name=f"{owner}.weight",
            layout=layout,
            format=self._format(scale) if self._method.symmetric else "int4_zp",
            shape=(rows, columns),
            file=self._tensors[name].file,
            parts=parts,
            groups=groups[0],
            zero_offset=self._method.zero_offset,
        )

    def _format(self, scale: str) -> Precision:
        """Of symmetric INT4, by its scales."""
        return "q4_0" if self._tensors[scale].kind == "F16" else "int4_bf16"

    def _part(self, name: str, *names: str, kinds: tuple[str, ...] = ("BF16", "F16")) -> str:
        """The first of the names that is there, beside weights `name`."""
        found = next((one for one in names if one in self._tensors), None)
        if found is None:
            held = self._tensors[name]
            raise ValueError(f"{held.file}: {name} holds {held.kind} without {' or '.join(names)}")
        if self._tensors[found].kind not in kinds:
            raise self._wrong(found, f"holds {self._tensors[found].kind}, allowed are {', '.join(kinds)}")
        return found

    def _if_there(self, names: Mapping[str, str]) -> dict[str, str]:
        return {part: name for part, name in names.items() if name in self._tensors}

    def _require_shape(self, name: str, part: str, *allowed: tuple[int, ...]) -> None:
        if self._tensors[part].shape not in allowed:
            listed = " or ".join(map(str, allowed))
            raise self._wrong(part, f"beside {name} of {self._tensors[name].shape} it must be {listed}")

    def _require_groups(self, scale: str, columns: int, groups: int = 0) -> None:
        step = FORMATS["q4_0"].group
        if not groups or columns % groups or columns // groups % step:
            raise self._wrong(scale, f"must divide {columns} columns into equal groups of a multiple of {step}")

    def _wrong(self, name: str, why: str) -> ValueError:
        held = self._tensors[name]
        return ValueError(f"{held.file}: {name} is {held.shape}: {why}")


def _require_known(weights: StoredWeights, method: Method) -> None:
    """Raise ValueError for a tensor that is no plain numbers and no part of a matrix, nor where it would be ignored."""
    used = {part for matrix in weights.matrices.values() for part in matrix.parts.values()}
    for name, one in weights.tensors.items():
        if name in used or weights.is_beside(name):
            continue
        if one.kind not in _NUMBERS and not name.endswith((*BUFFERS, *_INTEGERS)):
            raise ValueError(f"{one.file}: {name} holds {one.kind}, allowed are {', '.join(_NUMBERS)}{_hint(method)}")
        elif name.rpartition(".")[2] in _SCALES:
            raise ValueError(f"{one.file}: no place for {name}: it scales no quantised weights")


def _hint(method: Method) -> str:
    return "" if method.name else ", or quantised weights that config.json describes (quantization_config)"


def _require_alike(weights: StoredWeights) -> None:
    """Raise ValueError for an expert whose matrices differ in format."""
    first: dict[str, str] = {}
    for name in (*weights.matrices, *(weights.tensors.keys() - weights.matrices.keys())):
        if (match := _EXPERT.fullmatch(name)) is None:
            continue
        expert, kind = match[1], weights.format_of(name)
        before = first.setdefault(expert, name)
        if weights.format_of(before) != kind:
            file = weights.matrices[before].file
            raise ValueError(
                f"{file}: {before} is stored in {weights.format_of(before)} and {name} in {kind}, "
                f"matrices of one expert must be alike"
            )
