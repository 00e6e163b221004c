"""lm-eval's command line with the engine as a model.

python -m ktbench.eval.lm.cli run --model ktbench --model_args path=evals/nano,avx512=true --tasks gsm8k
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml
from lm_eval import utils
from transformers import AutoTokenizer

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.eval.lm.model import EngineLM
from ktbench.resources import checkpoint_folder, checkpoint_name, data_folder
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError, instead
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import moe_shape
from ktbench.spec.wire import from_plain

_ENGINE = tuple(field.name for field in fields(EngineSpec) if field.name != "placement")
_PRECISIONS = ("precision", "device_precision")
_LM = ("tokenizer", "max_length", "add_bos_token", "batch_size")
ALLOWED = ("path", *_PRECISIONS, *_ENGINE, *_LM)
_RULES = "lean"


class CommandLineLM(EngineLM):
    """The engine as lm-eval's command line opens it."""

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> EngineLM:
        return open_lm(utils.simple_parse_args_string(arg_string), additional_config or {})

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> EngineLM:
        return open_lm(arg_dict, additional_config or {})


def open_lm(arguments: Mapping[str, Any], further: Mapping[str, Any]) -> EngineLM:
    """The model of `--model_args`: `path`, precisions, fields of EngineSpec, and a few of lm-eval's.

    `further` are options of the command line, of which `batch_size` is used. lm-eval's own `device` is not: it is set
    whether or not the user set it. Raises RequestError in one line for arguments that are unknown or incompatible, and
    for models that cannot be loaded or run.
    """
    if unknown := next((name for name in arguments if name not in ALLOWED), None):
        raise RequestError(f"model_args: {unknown} is not known{instead(unknown, ALLOWED)}")
    if "path" not in arguments:
        raise RequestError("model_args: path is missing, the folder of a checkpoint or a GGUF file")
    try:
        return _open({"batch_size": further.get("batch_size") or 1} | dict(arguments))
    except (ValueError, Unsupported) as error:
        raise RequestError(f"model_args: {error}") from None


def _open(given: Mapping[str, Any]) -> EngineLM:
    spec, options = _spec(given), _options(given)
    folder = given.get("tokenizer", str(checkpoint_folder(str(given["path"]))))
    begins = {name: options[name] for name in ("add_bos_token",) if name in options}  # if its own rules leave it out
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **begins)
    except OSError as error:
        raise ValueError(f"tokenizer={folder}: {str(error).splitlines()[0]}") from None
    generator = open_generator([spec], HostRole(cores=len(os.sched_getaffinity(0))))
    lm = EngineLM(generator, tokenizer, **options)
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


def _whole(name: str, value: Any) -> int:
    if not str(value).isdigit() or int(value) < 1:
        raise ValueError(f"{name}={value}: allowed are whole numbers from 1 on")
    return int(value)


NAME = "ktbench"
_BAD_REQUEST = 2


def main() -> int:
    """Run lm-eval on the arguments of the command line; 2 if the engine rejects them."""
    from lm_eval.__main__ import cli_evaluate

    register()
    try:
        cli_evaluate()
    except RequestError as error:
        print(f"ktbench: {error}", file=sys.stderr)
        return _BAD_REQUEST
    return 0


def register() -> None:
    """Register our engine with lm-eval under its name, since lm-eval does not look for other packages' models."""
    import lm_eval.models  # noqa: F401, who registers its own first
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target="ktbench.eval.lm.cli:CommandLineLM")


if __name__ == "__main__":
    sys.exit(main())
