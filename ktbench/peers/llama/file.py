"""GGUF files as they are given to llama.cpp: whole, and with the weights that were asked for."""

from __future__ import annotations

from pathlib import Path

from ktbench.engine.gguf.families import OUR_WEIGHTS
from ktbench.engine.gguf.header import Header, read_header


def read_weights(path: Path, weights: str | None) -> Header:
    """The header of a file that names `weights`, a digest, as its own (None: any).

    Raises ValueError in one line for other weights, and as `read_header` for a file that is not whole.
    """
    header = read_header(path)
    found = header.metadata.get(OUR_WEIGHTS, "none named")
    if weights not in (None, found):
        raise ValueError(f"{path}: holds other weights than were asked for ({found}, asked for {weights})")
    return header
