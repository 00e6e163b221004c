"""Writes a model as a GGUF file for llama.cpp, piece by piece, and names the file that a peer runs for a cell.

Importing this needs neither PyTorch nor `gguf`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ktbench.engine.checkpoint import is_mxfp4
from ktbench.engine.gguf.families import OUR_CONFIG, OUR_WEIGHTS, GgufType, family_of
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.files import whole_file
from ktbench.resources import checkpoint_folder
from ktbench.spec.peers import peer_of
from ktbench.spec.run_spec import ModelSpec, RunSpec

_DIGITS = 12

MISSING = "gguf is not installed; bring it with: pip install gguf"
# Of what is written, and of how synthetic weights are drawn: a change makes older files unusable.
_FORM = 2
_DIGEST_BYTES = 16
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    """`experts` and `dense` are the types that it is written in, `weights` the digest that it must name as its own.

    A model that is a GGUF file itself is run as it is: then `weights` is None.
    """

    path: Path
    experts: GgufType
    dense: GgufType
    weights: str | None


def kept_file(spec: RunSpec) -> CachedFile:
    """The file of a cell, which need not be there yet: its name holds model, types and the digest of its numbers."""
    types = peer_of(spec.system).types
    experts, dense = (cast("GgufType", types[one]) for one in (spec.precision, spec.device_precision))
    model = spec.model
    if model.path is not None and is_gguf(model.path):
        return CachedFile(path=Path(model.path), experts=experts, dense=dense, weights=None)
    weights = weights_digest(model, experts, dense)
    kinds = experts if experts == dense else f"{experts}-{dense}"
    name = f"{Path(model.name).name}-{model.shape.layers}-layers-{kinds}-{weights[:_DIGITS]}.gguf"
    return CachedFile(path=Path(spec.peer.exports) / name, experts=experts, dense=dense, weights=weights)


def no_file(spec: RunSpec) -> str:
    """Why there can be no file for a cell; empty where there can, or its peer runs none."""
    path = spec.model.path
    if not peer_of(spec.system).gguf:
        return ""
    if path is not None and is_gguf(path):
        return f"{spec.system} runs all layers of {path}: leave model.layers=null" if spec.model.is_slice else ""
    if path is not None and is_mxfp4(path):
        return f"weights in mxfp4 are not exported from {path}: let llama.cpp convert them"
    try:
        family_of(spec.model.config)
    except ValueError as error:
        return str(error)
    return "" if has_gguf() else MISSING


if TYPE_CHECKING:
    from ktbench.engine.gguf.writing import Plan, TensorFile
    from ktbench.engine.loading.source import WeightSource


def has_gguf() -> bool:
    """Whether the package that writes such files is there."""
    return find_spec("gguf") is not None


def weights_digest(model: ModelSpec, experts: GgufType, dense: GgufType) -> str:
    """What the numbers of an export are, as hexadecimal digits: architecture, seed or files, and types."""
    content = {"form": _FORM, "config": model.config, "types": [experts, dense], "weights": _weights(model)}
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _weights(model: ModelSpec) -> Any:
    if model.path is None:
        return model.seed
    files = sorted(checkpoint_folder(model.path).glob("*.safetensors"))
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def export_gguf(
    model: ModelSpec, path: Path, *, experts: GgufType, dense: GgufType, say: Callable[[str], None]
) -> None:
    """Write the numbers that the engine loads for `model`: routed experts as `experts`, all other matrices as `dense`.

    The embedding and the halves of `kv_b_proj` are bf16 (fp16 with dense F16), all else is float32. In memory are at
    most the network without its routed experts and one of them; of a checkpoint one tensor at a time. The file is there
    once it is whole. Raises ValueError where `path` is taken, llama.cpp lacks the family or computes something else, a
    row is no whole number of blocks, a checkpoint lacks weights, or the disk is too small, and NotWritten.
    """
    from ktbench.engine.gguf.writing import TensorFile, TensorTypes, plan_file, write_head
    from ktbench.engine.loading.network import open_source

    if model.path is not None and is_gguf(model.path):
        raise ValueError(f"model.path={model.path}: is a GGUF file already")
    if model.path is not None and is_mxfp4(model.path):
        raise ValueError(f"model.path={model.path}: weights in mxfp4 are not exported, let llama.cpp convert them")
    config = complete_config(model.config)
    family = family_of(config)
    metadata = family.metadata(config)
    source = open_source(model)
    plan = plan_file(source.network, family, config, TensorTypes(experts=experts, dense=dense))
    _require_room(path, plan)
    _remark(model, family.remark, say)
    ours = {OUR_CONFIG: json.dumps(model.config), OUR_WEIGHTS: weights_digest(model, experts, dense)}
    with whole_file(path, synced=True) as part:
        begin = write_head(part, family.architecture, {"general.name": model.name} | metadata | ours, plan, experts)
        with part.open("r+b") as stream:
            _write(TensorFile(stream, begin, plan), plan, source, config, say)


def complete_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with all defaults of its family in Transformers."""
    from transformers import AutoConfig

    whole: dict[str, Any] = AutoConfig.for_model(**config).to_dict()
    return whole


def _require_room(path: Path, plan: Plan) -> None:
    if path.exists():
        raise ValueError(f"{path}: is there already, name a new file")
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < plan.data_bytes:
        raise ValueError(f"{path}: needs {plan.data_bytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free there")


def _remark(model: ModelSpec, remark: str, say: Callable[[str], None]) -> None:
    if remark:
        say(f"note: {remark}")
    if model.path is not None and (checkpoint_folder(model.path) / _TOKENIZER).is_file():
        say(f"note: {_TOKENIZER} is left out; the file works on token ids")


def _write(
    file: TensorFile, plan: Plan, source: WeightSource, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    from ktbench.engine.gguf.writing import Experts

    for part in plan.parts:
        if not isinstance(part, Experts):
            for name, tensor in part.mapped.split(source.tensor(part.name), config).items():
                file.put(name, tensor)
            continue
        store = source.experts(part.name).matrices
        for i in range(part.count):
            expert = store(i)
            for name, tensor in zip(part.names.values(), expert.tensors, strict=True):
                file.put_expert(name, i, tensor)
        say(f"wrote {part.name}")
