"""The least work of a step: the roof that a cell is held against."""

from __future__ import annotations

from torch import nn

from ktbench.core.record import Work
from ktbench.core.shape import MoEShape
from ktbench.engine.operator import ExpertsOperator
from ktbench.engine.routing import PassRouting

_BF16_BYTES = 2


def dense_params(network: nn.Module) -> int:
    """Weights that every token meets: all but routed experts and embedding. A head tied to the embedding counts."""
    outside = {id(p) for m in network.modules() if isinstance(m, ExpertsOperator) for p in m.parameters()}
    outside |= {id(p) for m in network.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outside -= {id(network.get_parameter("lm_head.weight"))}
    return sum(p.numel() for p in network.parameters() if id(p) not in outside)


def least_work(shape: MoEShape, dense: int, routing: PassRouting, batch: int, skipping: int) -> Work:
    """Work of one pass that was routed as `routing`: batch · tokens tokens, logits at `batch` positions.

    Bytes: every weight that the pass needs, read once, routed experts only where a token selected them. FLOPs: two for
    each product with a weight; attention scores are left out, so the count is a lower bound.
    """
    tokens, top_k = routing[0].ids.shape
    head = shape.vocab * shape.hidden
    products = tokens * (dense - head) + batch * head
    products += shape.moe_layers * tokens * (top_k - skipping) * shape.expert_params
    experts = active_experts(routing, skipping) * shape.expert_params
    return Work(weight_bytes=_BF16_BYTES * (dense + experts), flops=2 * products, tokens=tokens)


def active_experts(routing: PassRouting, skipping: int) -> int:
    """Experts that some token runs, summed over layers, when each token skips its lowest `skipping`."""
    kept = (layer.split(skipping)[0] if skipping else layer for layer in routing)
    return sum(len(set(layer.ids.flatten().tolist())) for layer in kept)
