"""Freezes composed content into specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ktbench.core.errors import RequestError
from ktbench.core.plain import from_plain
from ktbench.core.shape import moe_shape
from ktbench.core.spec import RunSpec
from ktbench.core.sweep import SweepSpec

_VOCAB_MULTIPLE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything a command line asks for."""

    spec: RunSpec
    sweep: SweepSpec
    resume: str | None
    resume_changed: bool
    run_name: str | None


def freeze(composed: Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None) -> Request:
    """Specs of composed content.

    `checkpoint` is the `config.json` of the folder `model.path`, where one is given. Raises RequestError with the
    first value that a spec refuses.
    """
    content = dict(composed)
    try:
        model = freeze_model(content.pop("model"), checkpoint)
        parts = ("workload", "engine", "measure", "system", "precision")
        spec = from_plain({"model": model} | {key: content.pop(key) for key in parts}, RunSpec)
        return from_plain({"spec": spec, **content}, Request)
    except ValueError as error:
        raise RequestError(str(error)) from None


def freeze_model(model: Mapping[str, Any], checkpoint: Mapping[str, Any] | None) -> dict[str, Any]:
    """Plain content of a ModelSpec: the slice's depth and vocabulary applied to the architecture's configuration."""
    full = dict(checkpoint if checkpoint is not None else model["config"])
    shape = moe_shape(full)
    layers = shape.layers if model["layers"] is None else model["layers"]
    if not isinstance(layers, int):
        raise ValueError(f"model.layers={layers}: must be a number or null")
    if checkpoint is not None and layers != shape.layers:
        raise ValueError(f"model.layers={layers}: a checkpoint is run whole, leave model.layers=null")
    return {
        "name": model["name"] if checkpoint is None else str(model["path"]),
        "config": _sliced(full, shape.layers, layers, _vocab(model, shape.vocab, layers / shape.layers)),
        "full_layers": shape.layers,
        "full_vocab": shape.vocab,
        "path": model["path"],
        "seed": model["seed"],
    }


def _sliced(config: Mapping[str, Any], full_layers: int, layers: int, vocab: int) -> dict[str, Any]:
    """Facts kept per layer (attention kinds, say) are lists as long as the model is deep: they are cut with it."""
    cut = {
        key: value[:layers] if isinstance(value, list) and len(value) == full_layers else value
        for key, value in config.items()
    }
    return cut | {"num_hidden_layers": layers, "vocab_size": vocab}


def _vocab(model: Mapping[str, Any], full: int, depth: float) -> int:
    """`auto`: the output head keeps its share of the work, so that a slice is the whole model on a smaller scale."""
    if model["path"] is not None or model["vocab"] == "full":
        return full
    if model["vocab"] == "auto":
        scaled = round(full * min(max(depth, 0), 1) / _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        return full if depth >= 1 else max(scaled, _VOCAB_MULTIPLE)
    if not isinstance(model["vocab"], int) or not 1 <= model["vocab"] <= full:
        raise ValueError(f"model.vocab={model['vocab']}: allowed are auto, full and 1 to {full}")
    return int(model["vocab"])
