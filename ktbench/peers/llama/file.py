"""GGUF files as they are given to llama.cpp: whole, and with the weights that were asked for."""

from __future__ import annotations

from pathlib import Path

from ktbench.engine.gguf.families import OUR_WEIGHTS
from ktbench.engine.gguf.header import Header, read_header
from ktbench.engine.gguf.kept import KeptFile
from ktbench.engine.protocol import Unsupported

_EXPERTS = "_exps."


def read_weights(path: Path, weights: str | None) -> Header:
    """The header of a file that names `weights`, a digest, as its own (None: any).

    Raises ValueError in one line for other weights, and as `read_header` for a file that is not whole.
    """
    header = read_header(path)
    found = header.metadata.get(OUR_WEIGHTS, "none named")
    if weights not in (None, found):
        raise ValueError(f"{path}: holds other weights than were asked for ({found}, asked for {weights})")
    return header


def require_types(header: Header, file: KeptFile, precision: str) -> None:
    """Raise Unsupported where routed experts are stored in another type than a cell of `precision` asks for."""
    kinds = {info.kind for name, info in header.tensors.items() if _EXPERTS in name and len(info.shape) == 3}
    if other := sorted(kinds - {file.experts}):
        held = " and ".join(other)
        raise Unsupported(f"{header.path}: its experts are {held}, precision={precision} asks for {file.experts}")
