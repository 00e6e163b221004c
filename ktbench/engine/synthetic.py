"""A real architecture built on `meta`, and seeded weights for it at the speed of memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
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

from ktbench.engine.forms import ExpertMatrices, LinearRows, is_experts, read_form
from ktbench.engine.loading.source import PLAIN, StoredExperts, WeightFilling, allocate
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.shape import text_config
from ktbench.spec.weights import Precision

# A prime, so that the rows of no matrix repeat before the whole pool has been used.
_POOL_SIZE = 8_388_593
_INITIALIZER_RANGE = 0.02  # Transformers' default
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


def _widen_router(block: nn.Module, experts: int, std: float) -> None:
    """The block around experts has one matrix with a row for each of them: whatever a family calls it, its router's."""
    for parameter in block.parameters():
        if parameter.dim() == 2 and len(parameter) == experts:
            parameter.data.mul_(1.0 / (std * math.sqrt(parameter.shape[1])))


class SyntheticSource:
    """The `WeightSource` of seeded numbers.

    Matrices come from the pool; norms, biases and buffers (rotary frequencies, router corrections) are set by the
    model's own initialisation. Routers are scaled to scores of unit variance whatever the width: the initial range of
    a narrow model would weigh all experts alike, and experts that are swapped would go unnoticed.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.network, self._pool = skeleton(model), WeightPool.of(model)
        self.expert_formats: Collection[Precision] = ["bf16"]
        self._is_filled = False

    def fill(self, filling: WeightFilling = PLAIN) -> None:
        network, pool, unread = self.network, self._pool, filling.unread(self.network)
        modules = dict(network.named_modules())
        experts = {name: module for name, module in modules.items() if is_experts(module)}
        own = {name: module.parameters(recurse=False) for name, module in modules.items() if name not in experts}
        sizes = {name: 0 if name in unread else sum(one.nbytes for one in held) for name, held in own.items()}
        for name in filling.progress.over("filling", sizes):
            module = modules[name]
            allocate(module, keeps_weight_on_meta=name in unread)
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
        self._is_filled = True

    def tensor(self, name: str) -> Tensor:
        """See `WeightSource`: a view of the network's, which is filled first."""
        if not self._is_filled:
            self.fill()
        held: Tensor = self.network.state_dict()[name]
        return held

    def experts(self, name: str) -> StoredExperts:
        return StoredExperts(matrices=TransientExperts(self.network.get_submodule(name), name, self._pool))

    def linear(self, name: str, precision: Precision) -> LinearRows | None:
        """See `WeightSource`: all are numbers."""


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
        """Expert `i`. Biases are drawn like matrices, so that they matter."""
        for key, tensor in self._expert.items():
            self.pool.fill(tensor, f"{self.name}.{i}.{key}")
        return self.form.split(self._expert)
