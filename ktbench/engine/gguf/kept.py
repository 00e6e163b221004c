"""The GGUF file that a peer runs for a cell: the model's own, or an export that is kept for the next sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ktbench.engine.gguf.export import MISSING, has_gguf, weights_digest
from ktbench.engine.gguf.families import family_of
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.gguf.names import GgufType
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec

_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFile:
    """`experts` and `dense` are the types that it is written in, `weights` the digest that it must name as its own.

    A model that is a GGUF file itself is run as it is: then `weights` is None.
    """

    path: Path
    experts: GgufType
    dense: GgufType
    weights: str | None


def kept_file(spec: RunSpec) -> KeptFile:
    """The file of a cell, which need not be there yet: its name tells model, types and the digest of its numbers."""
    types = BY_NAME[spec.system].types
    experts, dense = (cast("GgufType", types[one]) for one in (spec.precision, spec.device_precision))
    model = spec.model
    if model.path is not None and is_gguf(model.path):
        return KeptFile(path=Path(model.path), experts=experts, dense=dense, weights=None)
    weights = weights_digest(model, experts, dense)
    kinds = experts if experts == dense else f"{experts}-{dense}"
    name = f"{Path(model.name).name}-{model.shape.layers}-layers-{kinds}-{weights[:_DIGITS]}.gguf"
    return KeptFile(path=Path(spec.peer.exports) / name, experts=experts, dense=dense, weights=weights)


def no_file(spec: RunSpec) -> str:
    """Why there can be no file for a cell; empty where there can, or its peer runs none."""
    if not BY_NAME[spec.system].opaque or (spec.model.path is not None and is_gguf(spec.model.path)):
        return ""
    try:
        family_of(spec.model.config)
    except ValueError as error:
        return str(error)
    return "" if has_gguf() else MISSING
