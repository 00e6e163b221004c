"""Configurations in JSON files, read and checked; of `model.config=FILE` named, too: its weights are synthetic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktbench.resources import read_text
from ktbench.spec.errors import did_you_mean
from ktbench.spec.shape import known_config
from ktbench.spec.wire import digest

if TYPE_CHECKING:
    from ktbench.spec.run_spec import ModelSpec

_NAME = "_name_or_path"  # where Transformers notes what it loaded a configuration from
# What does not decide the network: where it was loaded from, code that is never run, special tokens.
_ASIDE = (_NAME, "auto_map", "bos_token_id", "eos_token_id", "pad_token_id")
_UNFIT = re.compile(r"[^\w.-]+")  # for a file's name
_DIGITS = 6
_MOST_BYTES = 4 << 20  # of a configuration; released ones have a few KB


def read_object(file: Path, where: str, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """The object in a JSON file of at most so many bytes. Raises ValueError in one line that begins with `where`.

    Infinite numbers, which JSON has not but some configurations have, become what Transformers writes for them.
    """
    text = read_text(file, where, most_bytes)
    try:
        content = json.loads(text, parse_constant=lambda name: {"__float__": name})
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: holds {type(content).__name__}, must hold an object")
    return content


def checked_config(released: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A released configuration as Transformers knows it. Raises ValueError as `known_config`, headed by `where`."""
    try:
        return known_config(released)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def released_config(file: str) -> dict[str, Any]:
    """A `config.json` as released, with the format of its weights (`quantization_config`) where it names one.

    Raises ValueError in one line that names the file for what is no JSON object.
    """
    where, path = f"model.config={file}", Path(file)
    if path.is_dir():
        raise ValueError(f"{where}: is a folder, name its config.json")
    return read_object(path, where)


def config_in(file: str) -> dict[str, Any]:
    """The configuration in a `config.json`, as `inspect_checkpoint` gives that of a folder.

    Raises ValueError as `released_config`, and for what is no Mixture-of-Experts model.
    """
    return _architecture(checked_config(released_config(file), f"model.config={file}"))


def config_name(file: str) -> str:
    """What the model is called: by the configuration itself, else by its file or folder; and by a digest of it."""
    released, path = released_config(file), Path(file).absolute()
    own, stem = released.get(_NAME), path.parent.name if path.name == "config.json" else path.stem
    name = str(own).rstrip("/").rpartition("/")[2] if own else stem.removesuffix("_config")
    return f"{_UNFIT.sub('_', name) or 'config'}@{digest(config_in(file))[:_DIGITS]}"


def require_runnable(file: str, model: ModelSpec) -> None:
    """Raise ValueError where the engine does not run the network of a `config.json`. Imports Transformers."""
    from transformers import CONFIG_MAPPING

    from ktbench.engine.forms import expert_positions
    from ktbench.engine.synthetic import skeleton

    if (kind := model.config["model_type"]) not in CONFIG_MAPPING:
        hint = did_you_mean(kind, CONFIG_MAPPING)
        raise ValueError(f"model.config={file}: model_type {kind} is no family of Transformers{hint}")
    try:
        expert_positions(skeleton(model))
    except ValueError as error:
        raise ValueError(f"model.config={file}: the engine does not run a {kind} ({error})") from None


def _architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the network. Special tokens may be beyond a smaller vocabulary, and no text is read."""
    kept = {key: value for key, value in config.items() if key not in _ASIDE}
    return kept | {key: _architecture(value) for key, value in kept.items() if key == "text_config"}
