"""A real architecture built on `meta`, and filled: with stored weights, or with seeded ones at the speed of memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from ktbench.engine.forms import ExpertMatrices, ExpertStore, is_experts, read_form
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.shape import text_config

# A prime, so that the rows of no matrix repeat before the whole pool has been used.
_POOL_SIZE = 8_388_593
_INITIALIZER_RANGE = 0.02  # Transformers' default
_WEIGHT = ".weight"
_SHOWN = 200  # characters of another program's message


def skeleton(model: ModelSpec) -> PreTrainedModel:
    """The architecture in bf16 on `meta`: shapes without memory, the experts loop being Transformers' own eager one.

    Raises ValueError in one line for a configuration of which Transformers builds none.
    """
    build: Any = AutoModelForCausalLM.from_config
    kind = str(model.config.get("model_type"))
    if kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"model={model.name}: Transformers has no causal language model of a {kind}")
    try:
        with torch.device("meta"):
            network: PreTrainedModel = build(family_config(model), dtype=torch.bfloat16, experts_implementation="eager")
    except Exception as error:  # whatever a family's own code makes of the numbers
        why = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN]
        raise ValueError(
            f"model={model.name}: Transformers cannot build a {kind} of its configuration ({why})"
        ) from error
    _require_rotated_width(network, model)
    network.train(False)
    return network


def _require_rotated_width(network: PreTrainedModel, model: ModelSpec) -> None:
    """Raise ValueError where a family with latent attention rotates as many numbers as another key says.

    Most families ignore a `head_dim` beside `qk_rope_head_dim`; a few, such as deepseek_v3, rotate by it.
    """
    facts = text_config(model.config)
    width = facts.get("qk_rope_head_dim") if facts.get("kv_lora_rank") else None
    rotated = [2 * buffer.numel() for name, buffer in network.named_buffers() if name.endswith("inv_freq")]
    if width is not None and any(one != width for one in rotated):
        raise ValueError(
            f"model={model.name}: head_dim={facts.get('head_dim')} must be qk_rope_head_dim={width}: "
            f"a {facts.get('model_type')} rotates so many numbers of a head"
        )


def family_config(model: ModelSpec) -> PreTrainedConfig:
    """The configuration of a model as its family has it in Transformers.

    A padding token that only the family's defaults name may be beyond a smaller vocabulary, which has none then.
    """
    decoded = PreTrainedConfig._decode_special_floats(model.config)
    config: PreTrainedConfig = AutoConfig.for_model(**decoded)
    text = config.get_text_config()
    pad, vocab = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if model.path is None and pad is not None and vocab is not None and pad >= vocab:
        text.pad_token_id = None
    return config


def distinct_tensors(network: PreTrainedModel) -> list[str]:
    """Names of parameters and persistent buffers outside of routed experts, the first of those that are tied."""
    experts = tuple(f"{name}." for name, module in network.named_modules() if is_experts(module))
    held = {name: t for name, t in network.state_dict(keep_vars=True).items() if not name.startswith(experts)}
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    return [name for name, tensor in held.items() if first[id(tensor)] == name]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFilling:
    """How a network is filled: linear layers whose weights are not needed stay on `meta`, `progress` counts bytes."""

    unread: Callable[[PreTrainedModel], frozenset[str]] = lambda network: frozenset()
    progress: LoadProgress = SILENT


PLAIN = WeightFilling()


def fill(
    network: PreTrainedModel,
    names: Iterable[str],
    read: Callable[[str], Tensor],
    filling: WeightFilling = PLAIN,
) -> None:
    """Give memory and content to everything on `meta` but the expert modules: what `read` gives for each of `names`.

    Buffers that no file has, such as rotary frequencies, are set by the model's own initialisation.
    """
    unread = filling.unread(network)
    for name, module in network.named_modules():
        if not is_experts(module):
            _allocate(module, keeps_weight_on_meta=name in unread)
    held = network.state_dict(keep_vars=True)
    wanted = {name: held[name].nbytes for name in names if name.removesuffix(_WEIGHT) not in unread}
    for name in filling.progress.over("reading", wanted):
        _set(network, name, read(name))
    initialise: Any = network.initialize_weights
    initialise()
    network.tie_weights()


def _allocate(module: nn.Module, *, keeps_weight_on_meta: bool) -> None:
    """Memory for what the module itself holds, with a linear layer's bias alone where its weight is not needed."""
    if not keeps_weight_on_meta:
        module.to_empty(device="cpu", recurse=False)
    elif isinstance(module, nn.Linear) and module.bias is not None:
        module.bias = nn.Parameter(torch.empty_like(module.bias, device="cpu"), requires_grad=False)


def fill_experts(module: nn.Module, matrices: ExpertStore) -> None:
    """Give memory to one experts module, and the numbers of `matrices`."""
    module.to_empty(device="cpu", recurse=False)
    form = read_form(module)
    for i in range(form.experts):
        for stored, held in zip(matrices(i).tensors, form.matrices(module, i).tensors, strict=True):
            held.data.copy_(stored)


def _set(network: PreTrainedModel, name: str, tensor: Tensor) -> None:
    """A parameter in its own type; a buffer in that or in float32, where a file has it so: such correct routers."""
    owner, last = network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    if isinstance(held := getattr(owner, last), nn.Parameter):
        tensor = nn.Parameter(tensor.to(held.dtype), requires_grad=False)
    else:
        tensor = tensor.to(torch.promote_types(tensor.dtype, held.dtype))
    tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    setattr(owner, last, tensor)


@lru_cache(maxsize=2)
def _normal_numbers(seed: int, std: float) -> Tensor:
    """In bf16, 17 MB, to be read only: drawn once for all engines that a process loads one after the other."""
    normal = np.random.default_rng(seed).standard_normal(_POOL_SIZE, dtype=np.float32)
    return torch.from_numpy(normal).mul_(std).to(torch.bfloat16)


class WeightPool:
    """Normal numbers drawn once; each tensor is a window into them that starts where seed and name say.

    Drawing billions of numbers takes minutes, copying them seconds. The values decide neither how many bytes move nor
    how many products are formed.
    """

    def __init__(self, seed: int, std: float) -> None:
        self.seed, self.std, self.numbers = seed, std, _normal_numbers(seed, std)

    @classmethod
    def of(cls, model: ModelSpec) -> WeightPool:
        """Numbers by the model's seed, as widely spread as its architecture initialises weights."""
        return cls(model.seed, text_config(model.config).get("initializer_range", _INITIALIZER_RANGE))

    def fill(self, tensor: Tensor, name: str) -> None:
        """Overwrite a contiguous bf16 tensor. Equal seed, name and shape give equal content."""
        flat = tensor.detach().view(-1)
        start = int.from_bytes(hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=8).digest(), "little")
        done, at = 0, start % _POOL_SIZE
        while done < flat.numel():
            some = min(flat.numel() - done, _POOL_SIZE - at)
            flat[done : done + some] = self.numbers[at : at + some]
            done, at = done + some, 0


def materialise(
    network: PreTrainedModel,
    pool: WeightPool,
    is_experts: Callable[[nn.Module], bool],
    filling: WeightFilling = PLAIN,
) -> None:
    """Give memory and content to everything on `meta` but the expert modules.

    Matrices come from the pool; norms, biases and buffers (rotary frequencies, router corrections) are set by the
    model's own initialisation. Routers are scaled to scores of unit variance whatever the width: the initial range of
    a narrow model would weigh all experts alike, and experts that are swapped would go unnoticed.
    """
    modules, unread = dict(network.named_modules()), filling.unread(network)
    experts = {name: module for name, module in modules.items() if is_experts(module)}
    own = {name: module.parameters(recurse=False) for name, module in modules.items() if name not in experts}
    sizes = {name: 0 if name in unread else sum(one.nbytes for one in parameters) for name, parameters in own.items()}
    for name in filling.progress.over("filling", sizes):
        module = modules[name]
        _allocate(module, keeps_weight_on_meta=name in unread)
        for key, parameter in module.named_parameters(prefix=name, recurse=False):
            if parameter.dim() >= 2:
                if not parameter.is_meta:
                    pool.fill(parameter, key)
                parameter._is_hf_initialized = True
    for name, module in experts.items():
        _widen_router(network.get_submodule(name.rpartition(".")[0]), read_form(module).experts, pool.std)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(pool.seed)
        initialise: Any = network.initialize_weights
        initialise()
    network.tie_weights()


def materialise_experts(module: nn.Module, name: str, pool: WeightPool) -> None:
    """Give memory and content to one experts module. Biases are drawn like its matrices, so that they matter."""
    module.to_empty(device="cpu", recurse=False)
    for key, parameter in module.named_parameters(recurse=False):
        for i in range(len(parameter)):
            pool.fill(parameter[i], f"{name}.{i}.{key}")


def _widen_router(block: nn.Module, experts: int, std: float) -> None:
    """The block around experts has one matrix with a row for each of them: whatever a family calls it, its router's."""
    for parameter in block.parameters():
        if parameter.dim() == 2 and len(parameter) == experts:
            parameter.data.mul_(1.0 / (std * math.sqrt(parameter.shape[1])))


class TransientExperts:
    """Matrices of one expert at a time, for weights that are packed elsewhere and never held here as a whole.

    Each call overwrites what the call before gave.
    """

    def __init__(self, module: nn.Module, name: str, pool: WeightPool) -> None:
        self.name, self.pool, self.form = name, pool, read_form(module)
        self._expert = {
            key: torch.empty(parameter.shape[1:], dtype=torch.bfloat16)
            for key, parameter in module.named_parameters(recurse=False)
        }

    def __call__(self, i: int) -> ExpertMatrices:
        """The same numbers that `materialise_experts` gives expert `i`."""
        for key, tensor in self._expert.items():
            self.pool.fill(tensor, f"{self.name}.{i}.{key}")
        return self.form.split(self._expert)
