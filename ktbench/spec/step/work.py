"""Bytes and operations of a step: of its layers, of what a cell holds, and the least that a step takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import get_args

from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape, attention_heads, cached_in_all, latent_widths, text_config
from ktbench.spec.weights import FORMATS, Precision, dense_bytes, expert_bytes, held_weights

BF16_BYTES, F32_BYTES = 2, 4
_GGUF = ".gguf"
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


def routed_bytes(spec: RunSpec) -> int:
    """Bytes of the routed experts that a cell runs, with their scales: of all MoE layers, of one that runs alone."""
    return plain_bytes(spec) if _is_base(spec) else packed_bytes(spec)


def routed_weights(spec: RunSpec) -> int:
    """Weights of the routed experts that a cell runs, those included that fill rows up to whole blocks."""
    if _is_base(spec) or _is_file(spec):
        return _sum_over(spec, [("bf16", "bf16")], held_weights)
    return _sum_over(spec, _packed_formats(spec), held_weights)


def _is_base(spec: RunSpec) -> bool:
    return spec.system == OURS and not spec.engine.fused


def device_bytes(spec: RunSpec) -> int:
    """Bytes of everything but the routed experts, the embedding in bf16; 0 for a single layer."""
    shape = spec.model.shape
    if spec.workload.phase == "layer":
        return 0
    table = 0 if shape.tied_head else shape.vocab * shape.hidden * BF16_BYTES
    return dense_bytes(shape, spec.device_precision) + table


def cache_bytes(spec: RunSpec) -> int:
    """Bytes of keys and values, in bf16, that the prompts leave which steps follow; 0 where steps follow none."""
    work = spec.workload
    return work.batch * work.prompt * token_cache_bytes(spec) if work.has_context else 0


def token_cache_bytes(spec: RunSpec) -> int:
    """Bytes of keys and values, in bf16, that a token leaves in the caches of all layers."""
    return cached_in_all(spec.model.config, spec.model.shape.layers) * BF16_BYTES


def packed_bytes(spec: RunSpec) -> int:
    """As the fused operator packs them, each layer in its formats, or as a peer holds them: a GGUF file as it is.

    Which layers rules match is not known before there is a network: where they name precisions, the largest counts.
    """
    if _is_file(spec):
        return sum(layer.nbytes for layer in spec.model.stored_here)
    return _bytes_in(spec, _packed_formats(spec))


def _is_file(spec: RunSpec) -> bool:
    """Whether a peer runs a GGUF file of released weights, which holds them as it does."""
    return bool(is_mapped(spec) and spec.model.stored and str(spec.model.path).endswith(_GGUF))


def _packed_formats(spec: RunSpec) -> Sequence[tuple[Precision, Precision]]:
    if spec.system == OURS:
        precisions = spec.precision, *spec.inject.precisions_of("experts")
        return max(map(spec.model.expert_formats, precisions), key=lambda formats: _bytes_in(spec, formats))
    held = _held_as(spec, spec.precision)
    return [(held, held)]


def linear_bytes(spec: RunSpec) -> int:
    """Bytes of the packed linear layers, or as a peer holds them; of precisions that rules name, the largest counts."""
    named = spec.inject.precisions_of("linear") if spec.system == OURS else ()
    precisions = (_held_as(spec, spec.device_precision), *named)
    return max(dense_bytes(spec.model.shape, one) for one in precisions)


def plain_bytes(spec: RunSpec) -> int:
    """Bytes of the routed experts of a cell in bf16, as PyTorch runs them."""
    return _bytes_in(spec, [("bf16", "bf16")])


def _bytes_in(spec: RunSpec, formats: Sequence[tuple[Precision, Precision]]) -> int:
    return _sum_over(spec, formats, expert_bytes)


def _sum_over(
    spec: RunSpec,
    formats: Sequence[tuple[Precision, Precision]],
    of_one: Callable[[MoEShape, Precision, Precision], int],
) -> int:
    """Over experts in these formats of gate and up, and of down: those of every layer, or one pair for all."""
    shape, layers = spec.model.shape, 1 if spec.workload.phase == "layer" else spec.model.shape.moe_layers
    pairs = formats[:layers] if len(formats) > 1 else [*formats] * layers
    return shape.experts * sum(of_one(shape, *pair) for pair in pairs)


def _held_as(spec: RunSpec, precision: Precision) -> Precision:
    """The precision of as many bits as the weights that a cell holds: llama.cpp's int8 is Q8_0."""
    if not is_mapped(spec):
        return precision
    held = peer_of(spec.system).types.get(precision, precision).lower()
    return next((one for one in get_args(Precision) if one == held), precision)


def is_mapped(spec: RunSpec) -> bool:
    """Whether a cell runs a GGUF file, which is mapped as it is: all of it counts, and only its embedding is bf16."""
    return spec.system != OURS and peer_of(spec.system).gguf


# Of LoRA in float32: its value, the first one, the gradient and the two moments of AdamW.
_HELD_OF_LORA = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedBytes:
    """What a training step adds: to the network, which may be on a device, and to its experts, which are on cores."""

    network: int
    experts: int


def trained_bytes(spec: RunSpec) -> TrainedBytes:
    """LoRA and its optimiser; for the backward pass the logits, activations, and base's matrices. 0 with other phases.

    The base is PEFT on Transformers: it forms W + BA of all experts of a layer, and keeps them until the backward pass
    unless activations are formed again; BA is there in float32 beside them. Of one layer of Qwen3-30B-A3B the worker is
    so estimated at 6.5 and 3.1 GiB (base, ours), where 6.0 and 3.1 were measured.
    """
    work, shape, lora = spec.workload, spec.model.shape, spec.lora
    if work.phase != "train":
        return TrainedBytes(network=0, experts=0)
    tokens, ffn = work.tokens_per_step, shape.expert_ffn
    attention_widths = shape.attention_params // shape.hidden  # of matrices with the hidden width on one side
    number = _HELD_OF_LORA * F32_BYTES
    logits = tokens * shape.vocab * (BF16_BYTES + 2 * F32_BYTES)  # as given, in float32, and their gradient
    # Around the experts: both norms and both residual sums with what goes into them; of attention inputs and outputs.
    around = shape.layers * tokens * (6 * shape.hidden + 2 * attention_widths) * F32_BYTES
    kept = 1 if work.recompute else shape.moe_layers
    # Of each of a token's experts: input and output; gate, up, and the activated product before and after the weight.
    within = kept * tokens * shape.top_k * (2 * shape.hidden + 4 * ffn) * BF16_BYTES
    formed = 0
    if lora.expert and not spec.engine.fused:
        layer = shape.experts * shape.expert_params
        formed = kept * layer * BF16_BYTES + layer * F32_BYTES
    return TrainedBytes(
        network=number * shape.layers * lora.attention + logits + around,
        experts=number * shape.moe_layers * shape.experts * lora.expert + within + formed,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseWork:
    """What every token meets: `params` weights in `nbytes`, the output head of which only `batch` positions need."""

    params: int
    nbytes: int
    batch: int


def dense_work(spec: RunSpec, head_rows: int) -> DenseWork:
    """What every token meets on cores, by the shape: without norms and the biases of attention, far below 1 %.

    Packed with +l, except routers, which stay bf16.
    """
    shape = spec.model.shape
    params = shape.other_params - (0 if shape.tied_head else shape.vocab * shape.hidden)
    if not spec.engine.packed_dense:
        return DenseWork(params=params, nbytes=BF16_BYTES * params, batch=head_rows)
    routers, packed = shape.moe_layers * shape.experts * shape.hidden, dense_bytes(shape, spec.device_precision)
    nbytes = packed + routers * BF16_BYTES - round(packed * routers / params)
    return DenseWork(params=params, nbytes=nbytes, batch=head_rows)


def least_work(shape: MoEShape, dense: DenseWork | None, *, tokens: int, selections: int, experts_bytes: int) -> Work:
    """The least work of a pass of `tokens` tokens, whose `selections` of routed experts read `experts_bytes` bytes.

    Bytes: every weight that the pass needs, read once. FLOPs: two for each product with a weight; attention scores are
    left out, so the count is a lower bound. Without `dense` of the experts alone, where a device does the rest.
    """
    products, nbytes = selections * shape.expert_params, experts_bytes
    if dense is not None:
        head = shape.vocab * shape.hidden
        products += tokens * (dense.params - head) + dense.batch * head
        nbytes += dense.nbytes
    return Work(weight_bytes=nbytes, flops=2 * products, tokens=tokens)


def total_work(works: Sequence[Work]) -> Work:
    """The work of several passes: each chunk of a prompt reads the weights again."""
    return Work(**{one.name: sum(getattr(work, one.name) for work in works) for one in fields(Work)})


def trained_work(forward: Work, shape: MoEShape, *, on_device: bool, attention: int, expert: int) -> Work:
    """Work of a training step around a forward pass (see `Work.trained`).

    LoRA has `attention` weights that every token meets, and `expert` in an expert of every MoE layer together. What is
    `on_device` is left out: all but the experts.
    """
    head = 0 if on_device else 2 * forward.tokens * shape.vocab * shape.hidden
    lora = shape.top_k * expert + (0 if on_device else attention)
    return forward.trained(head=head, layers=shape.layers, lora=lora)
