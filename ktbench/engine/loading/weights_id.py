"""Identity of a model's weights: of its files wherever they lie, or of what synthetic ones are made from."""

from __future__ import annotations

import json
import re
from functools import cache
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.resources import checkpoint_folder
from ktbench.spec.run_spec import ModelSpec

_DIGEST_BYTES = 16
# Of larger files the size, the time of the last change, and both ends identify them.
_READ_WHOLE = 256 << 20
_END = 4 << 20
_PART = re.compile(r"-\d{5}-of-(\d{5}\.gguf)$")  # of a split GGUF file


def weights_id(model: ModelSpec) -> str:
    """Digest of a model's weights: of its files, or of the configuration and the seed that make them."""
    return content_digest(_weights(model))


def content_digest(content: Any) -> str:
    """Of plain content, in hex digits."""
    return _digest_bytes(json.dumps(content, sort_keys=True).encode())


def _weights(model: ModelSpec) -> Any:
    if model.path is None:
        return [model.config, model.seed]
    found = _files(checkpoint_folder(model.path))
    if model.adapter is not None:
        found += [one for one in sorted(Path(model.adapter).iterdir()) if one.name.startswith("adapter_")]
    files = [(file, file.stat()) for file in found]
    return [model.config, [[file.name, _file_id(file, at.st_mtime_ns, at.st_size)] for file, at in files]]


def _files(found: Path) -> list[Path]:
    if is_gguf(found):
        return sorted(found.parent.glob(_PART.sub(r"-?????-of-\1", escape(found.name))))
    return [file for file in sorted(found.iterdir()) if _counts(file)]


def _counts(file: Path) -> bool:
    return file.suffix == ".safetensors" or file.name in ("config.json", "generation_config.json")


@cache
def _file_id(file: Path, changed_ns: int, size: int) -> str:
    with file.open("rb") as stream:
        if size <= _READ_WHOLE:
            return _digest_bytes(stream.read())
        first = stream.read(_END)
        stream.seek(-_END, 2)
        return content_digest([size, changed_ns, _digest_bytes(first), _digest_bytes(stream.read())])


def _digest_bytes(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
