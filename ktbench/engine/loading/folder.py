"""Folders of safetensors, read tensor by tensor: what is packed is never in memory as a whole before.

Routed experts come stacked as in memory, or separately as on the Hub. Any matrix may be quantised
(`ktbench.engine.stored`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ktbench.engine.checkpoint import is_extra, stored_weights
from ktbench.engine.forms import (
    Biases,
    Blocks,
    ExpertBlocks,
    ExpertMatrices,
    ExpertsForm,
    ExpertStore,
    LinearRows,
    is_experts,
    read_form,
)
from ktbench.engine.loading.names import CheckpointNames, Source
from ktbench.engine.loading.source import PLAIN, StoredExperts, WeightFilling, distinct_tensors, fill
from ktbench.engine.stored.blocks import as_blocks, blocks_of, numbers_of
from ktbench.engine.stored.matrices import StoredMatrix
from ktbench.engine.synthetic import skeleton
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import Precision

_STACKED = ("gate_up_proj", "down_proj")
_NUMBER = re.compile(r"\.\d+\.(?!.*\.\d+\.)")  # the last in a name


class FolderSource:
    """The `WeightSource` of a folder; only the requested parts are read.

    Raises ValueError for a tensor that is missing, has another shape than the network's or no place in it, and as
    `stored_weights` and `blocks_of`.
    """

    def __init__(self, model: ModelSpec) -> None:
        assert model.path is not None
        self._weights = weights = stored_weights(model.path)
        self.network, self._path = skeleton(model), model.path
        self._held: Mapping[str, Tensor] = self.network.state_dict(keep_vars=True)
        self._files: dict[Path, Any] = {
            file: safe_open(file, "pt") for file in {tensor.file for tensor in weights.tensors.values()}
        }
        stored = (name for name in weights.shapes if not weights.is_beside(name))
        self._names = CheckpointNames.of(self.network, stored)
        self._tied: Mapping[str, str] = getattr(self.network, "all_tied_weights_keys", None) or {}
        self._other_name = {**{source: target for target, source in self._tied.items()}, **self._tied}
        experts = [name for name, module in self.network.named_modules() if is_experts(module)]
        self.expert_formats: Collection[Precision] = {kind for name in experts for kind in self.experts(name).formats}
        self._distinct = distinct_tensors(self.network)
        for name in self._distinct:
            self._require_tensor(name, tuple(self._held[name].shape))
        self._require_all_used()

    def fill(self, filling: WeightFilling = PLAIN) -> None:
        fill(self.network, self._distinct, self.tensor, filling)

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts, in the type that Transformers keeps it in."""
        held, source = self._held[name], self._source(name)

        def read(stored: str) -> Tensor:
            numbers = self._numbers(stored)
            if numbers.is_floating_point() != held.is_floating_point():
                raise ValueError(
                    f"model.path={self._path}: {stored} holds {numbers.dtype}, the model needs {held.dtype}"
                )
            return numbers.to(held.dtype, copy=True)

        made = self._made(source, read)
        # A part would keep the memory of the whole.
        return made[source.target] if source.converter is None else made[name].clone()

    def linear(self, name: str, precision: Precision) -> LinearRows | None:
        """See `WeightSource`: a matrix in whole blocks of `precision` itself."""
        matrix = self._matrix(name)
        if matrix is None or matrix.format != precision or not matrix.is_whole:
            return None
        return LinearRows(lambda: self._blocks(matrix.name), precision)

    def _require_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the folder has no such tensor of the network, or in another shape."""
        source = self._source(name)
        if source.converter is None:
            self._require(source.names[0], shape)
            return
        shapes = self._weights.shapes
        made = self._made(source, lambda stored: torch.empty(shapes[stored], device="meta"))
        if (found := tuple(made[name].shape)) != shape:
            raise self._wrong(", ".join(source.names), found, shape)

    def _require_all_used(self) -> None:
        """Raise ValueError for a tensor that the network has no place for, and for a tied one that differs."""
        layers = self.network.config.get_text_config().num_hidden_layers
        idle = (lambda name: is_extra(name, layers), self._is_idle_bias)
        if unknown := [one for one in self._names.unknown if not any(is_idle(one) for is_idle in idle)]:
            name = type(self.network).__name__
            raise ValueError(
                f"model.path={self._path}: {name} has no place for {unknown[0]} and {len(unknown) - 1} others"
            )
        for target, source in self._tied.items():
            if {target, source} <= self._names.sources.keys() and not torch.equal(*map(self.tensor, (target, source))):
                raise ValueError(f"model.path={self._path}: {target} differs from {source}, config.json ties them")

    def _is_idle_bias(self, name: str) -> bool:
        """AutoGPTQ gives every linear layer a bias, of zeros where the model has none."""
        owner, _, last = name.rpartition(".")
        matrix = self._weights.matrices.get(f"{owner}.weight")
        return last == "bias" and matrix is not None and matrix.layout == "gptq" and not self._read(name).any()

    def experts(self, name: str) -> StoredExperts:
        """See `WeightSource`: read anew for every caller, so that a layer that is converted as a whole is let go of."""
        module = self.network.get_submodule(name)
        form, shapes = read_form(module), {key: tuple(held.shape) for key, held in module.named_parameters()}
        sources = [self._source(f"{name}.{key}") for key in _STACKED]
        if all(source.converter is None for source in sources):
            return self._stacked_experts(name, form, shapes)
        if all(source.stacks_experts for source in sources):
            return self._separate_experts(form, sources)
        return self._converted_experts(name, form, shapes)

    def _stacked_experts(self, name: str, form: ExpertsForm, shapes: Mapping[str, tuple[int, ...]]) -> StoredExperts:
        """As in memory. MXFP4 lies by output rows, whichever way the family holds its matrices."""
        places = {key: self._source(f"{name}.{key}").names[0] for key in shapes}
        matrices = {key: self._weights.matrices.get(places[key]) for key in _STACKED}
        turned = {key for key, one in matrices.items() if form.transposed and one and one.layout == "mxfp4"}
        for key, (first, *rest) in shapes.items():
            self._require(places[key], (first, *(reversed(rest) if key in turned else rest)))

        def part(key: str, i: int) -> Tensor:
            numbers = self._numbers(places[key], i).to(torch.bfloat16)
            return numbers.T if key in turned else numbers

        def biases(i: int) -> Biases | None:
            if not form.biases:
                return None
            both, down = (part(f"{key}_bias", i) for key in _STACKED)
            return Biases(*form.halves(both), down)

        def blocks(i: int) -> ExpertBlocks:
            both, down = (torch.from_numpy(self._blocks(places[key], i)) for key in _STACKED)
            gate, up = map(as_blocks, form.halves(both))
            return _expert_blocks(gate, up, down.numpy(), kind, biases(i))

        kind = self._common([places[key] for key in _STACKED])
        by_rows = not form.transposed or len(turned) == len(_STACKED)
        return _with_blocks(
            lambda i: form.split({key: part(key, i) for key in shapes}), blocks, kind if by_rows else "bf16"
        )

    def _separate_experts(self, form: ExpertsForm, sources: Sequence[Source]) -> StoredExperts:
        """Each matrix is a tensor of its own."""
        by_field = [names for source in sources for names in source.by_expert()]
        shapes = ((form.ffn, form.hidden), (form.ffn, form.hidden), (form.hidden, form.ffn))
        for names in by_field:
            self._require_experts(names, form.experts)
        places = [tuple(names[i] for names in by_field) for i in range(form.experts)]
        for place in places:
            for stored, shape in zip(place, shapes, strict=True):
                self._require(stored, shape)
        kind = self._common([stored for place in places for stored in place])

        def matrices(i: int) -> ExpertMatrices:
            gate, up, down = (self._numbers(stored).to(torch.bfloat16) for stored in places[i])
            return ExpertMatrices(gate=gate, up=up, down=down, glu=form.glu)

        def blocks(i: int) -> ExpertBlocks:
            gate, up, down = map(self._blocks, places[i])
            return _expert_blocks(gate, up, down, kind)

        return _with_blocks(matrices, blocks, kind)

    def _converted_experts(self, name: str, form: ExpertsForm, shapes: Mapping[str, tuple[int, ...]]) -> StoredExperts:
        """All of a layer at a time, where Transformers does more than to stack them."""
        for key, shape in shapes.items():
            self._require_tensor(f"{name}.{key}", shape)

        @lru_cache(maxsize=1)
        def whole() -> dict[str, Tensor]:
            return {key: self.tensor(f"{name}.{key}") for key in shapes}

        return StoredExperts(matrices=lambda i: form.split({key: one[i] for key, one in whole().items()}))

    def _require_experts(self, names: Mapping[int, str], experts: int) -> None:
        """Raise ValueError for an expert that is missing, and for one too many."""
        if lost := [i for i in range(experts) if i not in names]:
            other = next(iter(names.values()))
            raise self._missing(_NUMBER.sub(f".{lost[0]}.", other))
        if more := [name for i, name in names.items() if i >= experts]:
            raise ValueError(f"model.path={self._path}: the model has {experts} experts, and no place for {more[0]}")

    def _made(self, source: Source, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        try:
            return source.make(self.network, read)
        except (RuntimeError, IndexError, KeyError) as error:  # sizes that do not go together, a part that is missing
            why = " ".join(str(error).split())
            raise ValueError(f"model.path={self._path}: {source.target} cannot be made of its parts ({why})") from None

    def _matrix(self, name: str) -> StoredMatrix | None:
        """The quantised matrix that is the network's tensor `name`, where one is."""
        source = self._source(name)
        return self._weights.matrices.get(source.names[0]) if source.converter is None else None

    def _numbers(self, place: str, i: int | None = None) -> Tensor:
        """A tensor, or its part `i`; of a quantised matrix what it stands for, float32."""
        if (matrix := self._weights.matrices.get(place)) is not None:
            return numbers_of(matrix, lambda name: self._read(name, i))
        return self._read(place, i)

    def _blocks(self, place: str, i: int | None = None) -> Blocks:
        return as_blocks(blocks_of(self._weights.matrices[place], lambda name: self._read(name, i)))

    def _read(self, name: str, i: int | None = None) -> Tensor:
        file = self._files[self._weights.tensors[name].file]
        read: Tensor = file.get_tensor(name) if i is None else file.get_slice(name)[i]
        return read

    def _common(self, places: Iterable[str]) -> Precision:
        """The format in whose whole blocks all are stored; bf16 where there is none."""
        held = (self._weights.matrices.get(place) for place in places)
        found: set[Precision] = {one.format if one is not None and one.is_whole else "bf16" for one in held}
        return found.pop() if len(found) == 1 else "bf16"

    def _source(self, name: str) -> Source:
        """What makes a tensor of the network; a tied one may be stored by either name."""
        found = self._names.sources.get(name) or self._names.sources.get(self._other_name.get(name, ""))
        if found is None:
            raise self._missing(name)
        return found

    def _missing(self, name: str) -> ValueError:
        return ValueError(f"model.path={self._path}: no weights for {name}")

    def _require(self, stored: str, shape: tuple[int, ...]) -> None:
        held = (self._weights.matrices.get(stored) or self._weights.tensors[stored]).shape
        if held != shape:
            raise self._wrong(stored, held, shape)

    def _wrong(self, stored: str, held: tuple[int, ...], shape: tuple[int, ...]) -> ValueError:
        return ValueError(f"model.path={self._path}: tensor {stored} is {held}, the model needs {shape}")


def _expert_blocks(
    gate: Blocks, up: Blocks, down: Blocks, kind: Precision, biases: Biases | None = None
) -> ExpertBlocks:
    return ExpertBlocks(gate=gate, up=up, down=down, precision=kind, down_precision=kind, biases=biases)


def _with_blocks(matrices: ExpertStore, blocks: Callable[[int], ExpertBlocks], kind: Precision) -> StoredExperts:
    return StoredExperts(matrices=matrices, blocks=None if kind == "bf16" else blocks, formats=(kind, kind, kind))
