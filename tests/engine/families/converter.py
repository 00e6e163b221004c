"""llama.cpp's converter, which makes GGUF files of the folders of many families. Only llama.cpp's sources hold it."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

# What releases say in config.json, the converter asks for, and Transformers leaves out when it saves.
_RELEASED: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "glm4_moe_lite": {"scoring_func": "sigmoid", "first_k_dense_replace": 1},
    "minimax_m2": {"scoring_func": "sigmoid", "rotary_dim": 16},
    "solar_open": {"intermediate_size": 96, "partial_rotary_factor": 1.0},
}


class UnconvertedError(ValueError):
    """The converter does not know a family, or not the folder that Transformers writes of it."""


class Converter:
    """That of llama.cpp's sources, with the gguf package that lies beside it.

    Raises ValueError where a folder holds none.
    """

    def __init__(self, sources: Path) -> None:
        if not (sources / "conversion" / "__init__.py").is_file():
            raise ValueError(f"{sources}: has no conversion/__init__.py, is no source folder of llama.cpp")
        with _imported_from(sources, sources / "gguf-py"):
            self._models: Any = import_module("conversion")
            self._bf16 = import_module("gguf").LlamaFileType.MOSTLY_BF16
        logging.getLogger("hf-to-gguf").setLevel(logging.CRITICAL)

    def convert(self, folder: Path, file: Path) -> None:
        """Write a folder as GGUF in bf16, with numbers for tokens and without layers that predict further ones.

        Raises UnconvertedError with the converter's words.
        """
        config = json.loads((folder / "config.json").read_text())
        facts = config | _RELEASED.get(config["model_type"], {})
        try:
            kind = self._models.get_model_class(facts["architectures"][0])
            made = type(kind.__name__, (kind,), {"model_arch": kind.model_arch, "no_mtp": True, "set_vocab": _number})
            with torch.inference_mode(), redirect_stderr(io.StringIO()):
                made(folder, self._bf16, file, hparams=facts).write()
        except Exception as error:  # asserts, missing keys, names of tensors: whatever it meets
            words = " ".join(f"{type(error).__name__} {error}".split())
            raise UnconvertedError(f"llama.cpp's converter: {words}") from None


def _number(model: Any) -> None:
    """Tokens that say no more than how many there are: a tiny model has no tokenizer."""
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_token_list([str(token) for token in range(model.hparams["vocab_size"])])


@contextmanager
def _imported_from(*folders: Path) -> Iterator[None]:
    before, sys.path[:] = list(sys.path), [*map(str, folders), *sys.path]
    try:
        yield
    finally:
        sys.path[:] = before
