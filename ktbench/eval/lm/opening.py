"""Opens the engine from arguments of lm-eval's command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml
from transformers import AutoTokenizer

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.eval.lm.model import EngineLM
from ktbench.resources import checkpoint_folder, checkpoint_name, data_folder
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.plain import from_plain
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import moe_shape

_ENGINE = tuple(field.name for field in fields(EngineSpec) if field.name != "placement")
_PRECISIONS = ("precision", "device_precision")
_LM = ("tokenizer", "max_length", "add_bos_token", "batch_size")
ALLOWED = ("path", *_PRECISIONS, *_ENGINE, *_LM)
_RULES = "lean"


def open_lm(arguments: Mapping[str, Any], further: Mapping[str, Any]) -> EngineLM:
    """The model of `--model_args`: `path`, precisions, fields of EngineSpec, and a few of lm-eval's.

    `further` are options of the command line, of which `batch_size` counts. lm-eval's own `device` does not: it names
    one whether the user did or not. Raises RequestError in one line for arguments that are unknown or do not go
    together, and for what cannot be loaded or run.
    """
    if unknown := next((name for name in arguments if name not in ALLOWED), None):
        raise RequestError(f"model_args: {unknown} is not known; allowed are {', '.join(ALLOWED)}")
    if "path" not in arguments:
        raise RequestError("model_args: path is missing, the folder of a checkpoint or a GGUF file")
    try:
        return _opened({"batch_size": further.get("batch_size") or 1} | dict(arguments))
    except (ValueError, Unsupported) as error:
        raise RequestError(f"model_args: {error}") from None


def _opened(given: Mapping[str, Any]) -> EngineLM:
    spec, options = _spec(given), _options(given)
    folder = given.get("tokenizer", str(checkpoint_folder(str(given["path"]))))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except OSError as error:
        raise ValueError(f"tokenizer={folder}: {str(error).splitlines()[0]}") from None
    answering = open_generator([spec], HostRole(cores=len(os.sched_getaffinity(0))))
    lm = EngineLM(answering, tokenizer, **options)
    lm.use(spec)
    return lm


def _spec(given: Mapping[str, Any]) -> RunSpec:
    path = str(given["path"])
    config = inspect_checkpoint(path)
    shape = moe_shape(config)
    sizes = {"full_layers": shape.layers, "full_vocab": shape.vocab}
    content = {
        "model": {"name": checkpoint_name(path), "config": config, "path": path, **sizes},
        "workload": {"phase": "decode", "prompt": 1, "steps": 1},
        "engine": {name: given[name] for name in _ENGINE if name in given},
        "inject": yaml.safe_load((data_folder("conf") / "inject" / f"{_RULES}.yaml").read_text()),
    }
    return from_plain(content | {name: given[name] for name in _PRECISIONS if name in given}, RunSpec)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of EngineLM."""
    options: dict[str, Any] = {"batch": _whole("batch_size", given["batch_size"])}
    if "max_length" in given:
        options["max_length"] = _whole("max_length", given["max_length"])
    if "add_bos_token" in given:
        options["add_bos_token"] = given["add_bos_token"]
        if not isinstance(given["add_bos_token"], bool):
            raise ValueError(f"add_bos_token={given['add_bos_token']}: allowed are True and False")
    return options


def _whole(name: str, asked: Any) -> int:
    if not str(asked).isdigit() or int(asked) < 1:
        raise ValueError(f"{name}={asked}: allowed are whole numbers from 1 on")
    return int(asked)
