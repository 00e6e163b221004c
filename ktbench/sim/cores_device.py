"""What the device role costs on cores: attention, the dense layers beside the experts, the output head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores_products import PackedProducts, TorchProducts, Weights
from ktbench.sim.cores_team import Team
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape, text_config
from ktbench.spec.weights import expert_bytes

_BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Tokens that go through the model together: `tokens` of each of `batch` sequences, after `context` others."""

    tokens: int
    batch: int
    context: int

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.tokens


def passes_of(spec: RunSpec) -> tuple[Pass, ...]:
    """The passes of a step: one, or one for each chunk of a prompt. A prefill begins without context."""
    work = spec.workload
    if work.phase == "decode":
        return (Pass(tokens=1, batch=work.batch, context=work.prompt),)
    chunk = work.chunk or work.prompt
    begins = range(0, work.prompt, chunk)
    return tuple(Pass(tokens=min(chunk, work.prompt - at), batch=work.batch, context=at) for at in begins)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device role of a cell, run by a team: Transformers' modules, or with +l ours."""

    spec: RunSpec
    shape: MoEShape
    cost: Calibration
    team: Team

    def attention_s(self, work: Pass) -> float:
        """Of one layer: projections and router, norms and the like, and attention itself."""
        shape, name = self.shape, "lean_layer_us" if self._recorded else "torch_layer_us"
        router = shape.experts * shape.hidden
        products = self._linear_s(shape.attention_params, work.rows) + self._linear_s(router, work.rows)
        around = self._score_s(work) + self._cache_s(work) + self._elementwise_s(work)
        return self.cost[name] * 1e-6 + products + around

    def mlp_s(self, ffn: int, rows: int) -> float:
        """Of a shared expert or a dense layer of that width; 0 where there is none."""
        return self._linear_s(3 * self.shape.hidden * ffn, rows)

    def head_s(self, batch: int) -> float:
        """Of the output head, for the last position of each sequence."""
        return self._linear_s(self.shape.vocab * self.shape.hidden, batch)

    @property
    def _recorded(self) -> bool:
        """Whether a step is replayed without the modelling code."""
        return self.spec.engine.packed_dense and self.spec.workload.phase == "decode"

    def _linear_s(self, params: int, rows: int) -> float:
        if not params:
            return 0.0
        spec, counted = self.spec, np.array([rows])
        if not spec.engine.packed_dense:
            torch = TorchProducts(cost=self.cost, team=self.team)
            return float(torch.seconds(Weights(params=params, nbytes=_BF16_BYTES * params), counted)[0])
        shape, precision = self.shape, spec.device_precision
        packed = PackedProducts(cost=self.cost, team=self.team, engine=spec.engine, precision=precision)
        nbytes = params * expert_bytes(shape, precision) / shape.expert_params
        return float(packed.seconds(Weights(params=params, nbytes=nbytes), counted)[0])

    def _score_s(self, work: Pass) -> float:
        """Scores and their products with values, in a pass of several tokens; the masked half is computed as well."""
        if work.tokens == 1:
            return 0.0
        flops = 2 * work.rows * (work.context + work.tokens) * sum(attention_widths(self.spec, self.shape))
        unit = self.team.torch_unit
        return flops / (self.team.peaks[unit, "bf16"] * self.cost[f"attention_{unit}_peak"])

    def _cache_s(self, work: Pass) -> float:
        """Keys and values of the context, in a decode step. Transformers copies and repeats them for its heads."""
        if work.tokens > 1:
            return 0.0
        nbytes = work.batch * work.context * cache_bytes(self.spec, self.shape)
        if self._recorded:
            return nbytes / (self.team.read_bytes_per_s * self.cost["lean_cache_read"])
        return nbytes * 1e-6 * self.cost["torch_cache_ms_per_mb"] * 1e-3 / self.team.cores

    def _elementwise_s(self, work: Pass) -> float:
        """Norms, rotations, additions, and the memory that each of them is given anew."""
        if work.tokens == 1:
            return 0.0
        moved_mb = work.rows * self.shape.hidden * _BF16_BYTES * 1e-6
        name = "lean_elementwise_ms_per_mb" if self.spec.engine.packed_dense else "torch_elementwise_ms_per_mb"
        return moved_mb * self.cost[name] * 1e-3 / self.team.cores


def attention_widths(spec: RunSpec, shape: MoEShape) -> tuple[int, int]:
    """Widths of queries and of values, over all heads."""
    config = text_config(spec.model.config)
    heads = int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):
        key = int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])
        return heads * key, heads * int(config["v_head_dim"])
    head = int(config.get("head_dim") or shape.hidden // heads)
    return heads * head, heads * head


def cache_bytes(spec: RunSpec, shape: MoEShape) -> int:
    """Bytes that a token leaves in the cache of a layer: of latent attention Transformers keeps what it expands to."""
    config, (keys, values) = text_config(spec.model.config), attention_widths(spec, shape)
    heads = int(config["num_attention_heads"])
    kept = heads if config.get("kv_lora_rank") else int(config.get("num_key_value_heads") or heads)
    return (keys + values) * kept // heads * _BF16_BYTES
