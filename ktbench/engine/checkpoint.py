"""Checks a checkpoint by its headers without importing PyTorch, and loads a Hugging Face folder (safetensors only)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ktbench.engine.gguf.inspecting import inspect_gguf, is_gguf
from ktbench.engine.loading.config_file import checked_config, read_object
from ktbench.engine.stored.headers import BUFFERS, read_weights
from ktbench.engine.stored.matrices import StoredMatrix, StoredTensor, StoredWeights, is_plain_order, require_symmetric
from ktbench.engine.stored.methods import read_method
from ktbench.engine.stored.sizes import require_sizes
from ktbench.engine.training.adapter_folder import merge_adapter
from ktbench.resources import checkpoint_folder
from ktbench.spec.shape import MoEShape, moe_shape, text_config, told_tied

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from ktbench.spec.run_spec import ModelSpec

_CONFIG = "config.json"
_GENERATION = "generation_config.json"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_INDEX_BYTES = 32 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_EMBEDDING = re.compile(r"(?:\w+\.)*embed_tokens\.weight")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# What predicts further tokens, and what sees images.
_BESIDES = ("mtp.", "vision_tower.", "mm_projector.")


def inspect_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The configuration in a local Hugging Face folder or a GGUF file, once its weight files have been found whole.

    Raises ValueError as `stored_weights`, `checkpoint_config`, `moe_shape` and `require_sizes`, and naming a tensor
    whose content says that it is read otherwise, or an output head that is missing.
    """
    path = str(folder)
    if is_gguf(checkpoint_folder(path)):
        return checkpoint_config(path)
    weights, config = stored_weights(path), checkpoint_config(path)
    shape = moe_shape(config)
    sizes = {name: size for name, size in weights.shapes.items() if not is_extra(name, shape.layers)}
    require_sizes(sizes, shape, f"model.path={path}")
    _require_head(weights, shape, config, path)
    _require_int4(weights)
    return config


def checkpoint_config(path: str) -> dict[str, Any]:
    """The configuration in a local Hugging Face folder, whose weights may be missing, or in a GGUF file.

    Raises ValueError naming the file where it is not there or no Mixture-of-Experts model's; for a GGUF file see
    `inspect_gguf`.
    """
    place = checkpoint_folder(path)
    return inspect_gguf(place) if is_gguf(place) else checked_config(_released_config(path), str(place / _CONFIG))


def require_tokenizer(what: str, path: str, vocab: int) -> None:
    """Raises ValueError for a checkpoint without a tokenizer, which `what` needs, or with one of another model.

    Tokens that were added to it count only where a text has them: many a tokenizer has padding that no model knows.
    """
    folder = checkpoint_folder(path)
    if is_gguf(path) or not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ValueError(f"model.path={path}: {what} needs a folder with a tokenizer (tokenizer.json)")
    if (file := folder / "tokenizer.json").is_file() and (largest := _largest_id(file)) >= vocab:
        raise ValueError(
            f"model.path={path}: its tokenizer has tokens up to {largest}, the model knows {vocab}: "
            "tokenizer.json and config.json are not of one model"
        )


def _largest_id(file: Path) -> int:
    """Of the tokens that a tokenizer cuts texts into; -1 where its file does not say. Raises ValueError for no JSON."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: cannot be read as JSON ({error})") from None
    model = content.get("model") if isinstance(content, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # scores in the order of ids
        return len(vocab) - 1
    return max((one for one in vocab.values() if isinstance(one, int)), default=-1) if isinstance(vocab, dict) else -1


def stored_weights(folder: str) -> StoredWeights:
    """What the headers of a Hugging Face folder say that it holds.

    Raises ValueError naming the file and what is wrong with it: no `config.json`, no safetensors (pickles are never
    read), a file that the index names but is missing, a truncated or damaged file, weights quantised in a way that is
    not read, described or not (see `read_method` and `read_weights`).
    """
    path = checkpoint_folder(folder)
    if not path.is_dir():
        raise ValueError(f"model.path={folder}: no such folder{_on_the_hub(folder)}")
    method = read_method(path, _released_config(folder))
    weights = read_weights(_tensors(path), method)
    if method.reordered:
        _require_plain_order(weights)
    return weights


def _on_the_hub(name: str) -> str:
    """How to get what looks like the name of a repository of the Hugging Face hub; empty for other names."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        return ""
    return f"; if it is on the hub, download it: hf download {name} --local-dir FOLDER, then model.path=FOLDER"


def _require_plain_order(weights: StoredWeights) -> None:
    """Raise ValueError for the first matrix whose groups may be no runs of columns: desc_act alone does not tell."""
    for matrix in weights.matrices.values():
        if "order" not in matrix.parts:
            raise ValueError(f"{matrix.file}: {matrix.name} reorders columns (desc_act), which is not read")


def _require_int4(weights: StoredWeights) -> None:
    """Raise ValueError for the first matrix of INT4 that reorders columns, or has zero points that it denies."""
    by_file = defaultdict[Path, list[tuple[StoredMatrix, str]]](list)
    for matrix in weights.matrices.values():
        parts = ["order", *(["zeros"] if matrix.format != "int4_zp" else [])]
        for part in parts:
            if part in matrix.parts:
                by_file[weights.tensors[matrix.parts[part]].file].append((matrix, part))
    for file, held in by_file.items():
        with safe_open(file, framework="numpy") as tensors:
            for matrix, part in held:
                _require_part(matrix, part, tensors.get_tensor(matrix.parts[part]))


def _require_part(matrix: StoredMatrix, part: str, array: NDArray[Any]) -> None:
    if part == "zeros":
        pairs = array.view(np.uint8)
        require_symmetric(matrix, np.stack([pairs & 15, pairs >> 4]))
    elif not is_plain_order(array, matrix.groups):
        raise ValueError(f"{matrix.file}: {matrix.parts[part]} reorders columns (desc_act), which is not read")


def _require_head(weights: StoredWeights, shape: MoEShape, config: Mapping[str, Any], path: str) -> None:
    """Raise ValueError where a model that has a head of its own has nothing that could be it."""
    size = (shape.vocab, shape.hidden)
    tables = [name for name, held in weights.shapes.items() if held == size and not _LAYER.search(name)]
    if len(tables) == 1 and _EMBEDDING.fullmatch(tables[0]) and not _is_tied(config):
        raise ValueError(
            f"model.path={path}: no weights for lm_head.weight, which is not the embedding (tie_word_embeddings)"
        )


def _is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the head is the embedding: by the configuration, else by the default of its family in Transformers."""
    if (told := told_tied(config)) is not None:
        return told
    from transformers import CONFIG_MAPPING

    kind = str(text_config(config).get("model_type"))
    return kind not in CONFIG_MAPPING or bool(getattr(CONFIG_MAPPING[kind](), "tie_word_embeddings", True))


def is_mxfp4(path: str) -> bool:
    """Whether the routed experts of a whole checkpoint are in MXFP4, as gpt-oss is released."""
    return not is_gguf(path) and read_method(checkpoint_folder(path), _released_config(path)).name == "mxfp4"


def _released_config(path: str) -> dict[str, Any]:
    file = checkpoint_folder(path) / _CONFIG
    if not file.is_file():
        raise ValueError(f"model.path={path}: no {_CONFIG} there, not a Hugging Face folder")
    return read_object(file, str(file))


def _weight_map(path: Path) -> dict[str, str]:
    """The names of files by those of the tensors in them, as the index of a folder gives them."""
    if not (path / _INDEX).is_file():
        raise ValueError(_no_weights(path))
    index = path / _INDEX
    names: Any = read_object(index, str(index), _INDEX_BYTES).get("weight_map")
    if not names or not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index}: has no weight_map from tensors to files")
    if elsewhere := [name for name in names.values() if Path(name).name != name or "\0" in name]:
        raise ValueError(f"{index}: names {elsewhere[0]!r}, must name files beside it")
    return dict(names)


def _no_weights(path: Path) -> str:
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        return f"model.path={path}: only pickled weights ({pickles[0]}); pickles are never read, convert to safetensors"
    return f"model.path={path}: no weights there, neither {_SINGLE} nor {_INDEX}"


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    """By name, of one file or of those that the index names: each tensor is in its file and in no other."""
    if (folder / _SINGLE).is_file():
        return dict(_held(folder / _SINGLE))
    files, found = _weight_map(folder), dict[str, StoredTensor]()
    for file in sorted({folder / file for file in files.values()}):
        for name, one in _held(file):
            if name in found:
                raise ValueError(f"{file}: {name} is in {found[name].file.name}, too")
            found[name] = one
    if lost := [name for name, file in files.items() if name not in found or found[name].file.name != file]:
        raise ValueError(f"{folder / _INDEX}: {lost[0]!r} is not in {files[lost[0]]}")
    return found


def _held(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """What is in a file, which is its header and exactly the bytes that the header promises."""
    if not file.is_file():
        raise ValueError(f"{file}: named by {_INDEX} but missing")
    try:
        with safe_open(file, framework="numpy") as held:
            for name in held.keys():  # noqa: SIM118
                part = held.get_slice(name)
                yield name, StoredTensor(file, part.get_dtype(), tuple(part.get_shape()))
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated or damaged ({error})") from None


def read_checkpoint(model: ModelSpec) -> PreTrainedModel:
    """The model in a folder, or its first layers, with its weights in bf16, those of `model.adapter` merged in.

    Layers that predict further tokens are left out. Raises ValueError where the folder is not whole (see
    `inspect_checkpoint`), lacks weights of the architecture, or has others or has them in other shapes.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from ktbench.engine.synthetic import family_config

    assert model.path is not None
    inspect_checkpoint(model.path)
    read: Any = AutoModelForCausalLM.from_pretrained
    try:
        network, report = read(
            checkpoint_folder(model.path),
            config=family_config(model),
            key_mapping={r"^language_model\.": ""},
            dtype=torch.bfloat16,
            experts_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # which are in the report, and refused by name
            output_loading_info=True,
        )
    except Exception as error:  # whatever Transformers makes of the configuration and of weights that do not go with it
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"model.path={model.path}: Transformers cannot read it ({why})") from error
    if (differs := _difference(network, report)) is not None:
        raise ValueError(f"model.path={model.path}: {differs}")
    whole: PreTrainedModel = network if model.adapter is None else merge_adapter(network, model.adapter)
    whole.train(False)
    return whole


def generation_config(path: str) -> GenerationConfig | None:
    """How a folder's model ends and samples its answers; None where the folder does not say.

    Raises ValueError where its generation_config.json cannot be read.
    """
    from transformers import GenerationConfig

    folder = checkpoint_folder(path)
    if not (folder / _GENERATION).is_file():
        return None
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"model.path={path}: {_GENERATION}: {' '.join(str(error).split())}") from None


def _difference(network: PreTrainedModel, report: Mapping[str, Any]) -> str | None:
    """How the weights differ from the architecture's, by what Transformers reports of loading them."""
    if missing := sorted(report["missing_keys"]):
        return f"no weights for {missing[0]} and {len(missing) - 1} others"
    if wrong := sorted(report["mismatched_keys"]):
        name, held, needed = wrong[0]
        return f"tensor {name} is {tuple(held)}, the model needs {tuple(needed)}"
    layers = network.config.get_text_config().num_hidden_layers
    if unknown := [name for name in sorted(report["unexpected_keys"]) if not is_extra(name, layers)]:
        return f"{type(network).__name__} has no place for {unknown[0]} and {len(unknown) - 1} others"
    return None


def is_extra(name: str, layers: int) -> bool:
    """Whether a tensor is rightly left out where so many layers are read: it is no weight of these."""
    layer = _LAYER.search(name)
    beyond = layer is not None and int(layer[1]) >= layers
    return beyond or name.startswith(_BESIDES) or name.endswith(BUFFERS)
