"""A model from its `config.json` alone (`model.config=FILE`): read, checked, and named; its weights are synthetic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktbench.spec.errors import did_you_mean
from ktbench.spec.shape import known_config, moe_shape
from ktbench.spec.wire import digest

if TYPE_CHECKING:
    from ktbench.spec.run_spec import ModelSpec

_NAME = "_name_or_path"  # where Transformers notes what it loaded a configuration from
# What does not decide the network: where it was loaded from, code that is never run, special tokens.
_ASIDE = (_NAME, "auto_map", "bos_token_id", "eos_token_id", "pad_token_id")
_UNFIT = re.compile(r"[^\w.-]+")  # for a file's name
_DIGITS = 6
_MOST = 200  # characters of another program's message


def released_config(file: str) -> dict[str, Any]:
    """A `config.json` as released, with the format of its weights (`quantization_config`) where it names one.

    Raises ValueError in one line that names the file for what is no Hugging Face configuration.
    """
    where, path = f"model.config={file}", Path(file)
    if path.is_dir():
        raise ValueError(f"{where}: is a folder, name its config.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ValueError(f"{where}: has no model_type, is not a Hugging Face configuration")
    return content


def config_in(file: str) -> dict[str, Any]:
    """The configuration in a `config.json`, as `inspect_checkpoint` gives that of a folder.

    Raises ValueError as `released_config`, and for what is no Mixture-of-Experts model.
    """
    config = known_config(released_config(file))
    try:
        moe_shape(config)
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"model.config={file}: {' '.join(str(error).split())}") from None
    return _architecture(config)


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
    except Exception as error:  # whatever a family's own code makes of the numbers
        why = f"{type(error).__name__}: {error}".splitlines()[0][:_MOST]
        raise ValueError(f"model.config={file}: the engine does not run a {kind} ({why})") from None


def _architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the network. Special tokens may be beyond a smaller vocabulary, and no text is read."""
    kept = {key: value for key, value in config.items() if key not in _ASIDE}
    return kept | {key: _architecture(value) for key, value in kept.items() if key == "text_config"}
