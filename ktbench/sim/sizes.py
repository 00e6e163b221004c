"""Bytes and operations of a model's layers, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import attention_heads, latent_widths, text_config
from ktbench.spec.weights import FORMATS, Precision, expert_bytes

BF16_BYTES, F32_BYTES = 2, 4
# Passes over a token's hidden state that norms, rotations and additions of a layer take together.
_ELEMENTWISE_PASSES = 16
# Moved for a logit of a training step, in each direction: in bf16, in float32, and its logarithm or gradient, each
# written and read.
_LOGIT_BYTES = 2 * (BF16_BYTES + 2 * F32_BYTES)
# Of AdamW for a number in float32: PyTorch's eight operations read and write it, its gradient, moments and temporaries
# twenty times.
ADAMW_BYTES = 20 * F32_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What a step reads and computes, layer by layer.

    `attention_params` are those of projections that a precision changes, `fixed_params` those of the up-projection of
    latent keys and values, which stay in bf16. `score_flops` are operations of attention for a pair of query and key,
    `absorbed_flops` those for a query and a latent that is not expanded. `key_bytes` is what a token leaves in the
    cache of a layer, `expanded_key_bytes` the same where latent keys and values are kept expanded, as Transformers did.
    `family` is the configuration's `model_type`.
    """

    family: str
    latent: bool
    hidden: int
    experts: int
    top_k: int
    expert_flops: int
    expert_bytes: int
    expert_ffn: int
    attention_params: int
    fixed_params: int
    shared_params: int
    dense_params: int
    head_params: int
    bytes_per_param: float
    score_flops: int
    absorbed_flops: int
    key_bytes: int
    expanded_key_bytes: int

    @property
    def gate_bytes(self) -> int:
        """The router of a layer, in float32."""
        return self.experts * self.hidden * F32_BYTES

    def attention_bytes(self, context: int) -> float:
        """Read by attention of one token at a context, the router not included."""
        weights = self.attention_params * self.bytes_per_param + self.fixed_params * BF16_BYTES
        return weights + self.key_bytes * context

    @property
    def logits_bytes(self) -> int:
        """Moved by the loss for a token, in one direction."""
        return _LOGIT_BYTES * self.head_params // self.hidden

    @property
    def elementwise_bytes(self) -> int:
        """Moved for a token of a layer by norms, rotations and additions."""
        return _ELEMENTWISE_PASSES * self.hidden * BF16_BYTES


def sizes_of(spec: RunSpec) -> Sizes:
    """The sizes of a cell's model in its precisions."""
    shape, config = spec.model.shape, text_config(spec.model.config)
    latent, cached = bool(config.get("kv_lora_rank")), shape.cached_numbers
    if latent:
        at = latent_widths(config)
        heads, key, value = at.heads, at.nope + at.rope, at.value
        expanded, absorbed = heads * (key + value), cached + at.rank
    else:
        heads, _, key = attention_heads(config)
        value, expanded, absorbed = key, cached, 2 * key
    return Sizes(
        family=str(config.get("model_type")),
        latent=latent,
        hidden=shape.hidden,
        experts=shape.experts,
        top_k=shape.top_k,
        expert_flops=2 * shape.expert_params,
        expert_bytes=round(
            shape.expert_params * _bytes_per_param(spec, spec.precision if spec.engine.fused else "bf16")
        ),
        expert_ffn=shape.expert_ffn,
        attention_params=shape.attention_params - shape.latent_params,
        fixed_params=shape.latent_params,
        shared_params=3 * shape.hidden * shape.shared_ffn,
        dense_params=3 * shape.hidden * shape.dense_ffn,
        head_params=shape.vocab * shape.hidden,
        bytes_per_param=_bytes_per_param(spec, spec.device_precision),
        score_flops=2 * heads * (key + value),
        absorbed_flops=2 * heads * absorbed,
        key_bytes=cached * BF16_BYTES,
        expanded_key_bytes=expanded * BF16_BYTES,
    )


def _bytes_per_param(spec: RunSpec, precision: Precision) -> float:
    """KTransformers' int4 has one scale for each row, as int8 (amx.hpp, BufferBInt4Impl): below 1 % of the bytes."""
    shape, row = spec.model.shape, FORMATS[precision]
    return 0.5 if row.bits == 4 and not row.block_bytes else expert_bytes(shape, precision) / shape.expert_params
