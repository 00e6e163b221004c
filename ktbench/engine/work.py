"""The least work of a step: the roof that a cell is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from torch import Tensor, nn

from ktbench.engine.forms import is_experts
from ktbench.engine.routing import PassRouting, Routing
from ktbench.spec.record import Work
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import Precision, expert_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsWork:
    """Work of the routed experts: each token skips `skipping`.

    `precisions` are those of the weights that are read, of gate and up and of down, in every MoE layer; a single pair
    is that of all layers. `elsewhere`, where it is not empty, has a bool [E] for every MoE layer: of the experts whose
    work is a device's.
    """

    shape: MoEShape
    precisions: Sequence[tuple[Precision, Precision]]
    skipping: int = 0
    elsewhere: Sequence[Tensor] = ()

    def weight_bytes(self, layers: Iterable[Routing]) -> int:
        """Bytes of the experts that some token runs, each read once in every layer."""
        active = [len(set(ids.flatten().tolist())) for ids in self._run(layers)]
        precisions = self.precisions if len(self.precisions) > 1 else [*self.precisions] * len(active)
        pairs = zip(active, precisions, strict=True)
        return sum(experts * expert_bytes(self.shape, *precision) for experts, precision in pairs)

    def products(self, layers: Iterable[Routing]) -> int:
        """Products with a weight, over all tokens and their experts."""
        return sum(ids.numel() for ids in self._run(layers)) * self.shape.expert_params

    def _run(self, layers: Iterable[Routing]) -> Iterator[Tensor]:
        """Of every layer the experts that its tokens run, one for each token that does."""
        for number, layer in enumerate(layers):
            ids = (layer.split(self.skipping)[0] if self.skipping else layer).ids
            yield ids[~self.elsewhere[number].to(ids.device)[ids]] if self.elsewhere else ids


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseWork:
    """What every token meets: `params` weights in `nbytes`, the output head of which only `batch` positions need."""

    params: int
    nbytes: int
    batch: int


def dense_params(network: nn.Module) -> int:
    """Weights that every token meets: all but routed experts and embedding. A head tied to the embedding counts."""
    outside = {id(p) for m in network.modules() if is_experts(m) for p in m.parameters()}
    outside |= {id(p) for m in network.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outside -= {id(network.get_parameter("lm_head.weight"))}
    return sum(p.numel() for p in network.parameters() if id(p) not in outside)


def least_work(dense: DenseWork | None, experts: ExpertsWork, routing: PassRouting) -> Work:
    """Work of one pass that was routed as `routing`: its tokens in, logits at `dense.batch` positions out.

    Bytes: every weight that the pass needs, read once, routed experts only where a token selected them. FLOPs: two for
    each product with a weight; attention scores are left out, so the count is a lower bound. Without `dense` of the
    experts alone, where a device does the rest.
    """
    tokens = len(routing[0].ids)
    products, weight_bytes = experts.products(routing), experts.weight_bytes(routing)
    if dense is not None:
        head = experts.shape.vocab * experts.shape.hidden
        products += tokens * (dense.params - head) + dense.batch * head
        weight_bytes += dense.nbytes
    return Work(weight_bytes=weight_bytes, flops=2 * products, tokens=tokens)


def step_work(dense: DenseWork | None, experts: ExpertsWork, passes: Sequence[PassRouting]) -> Work:
    """Work of a step of several passes: each chunk of a prompt reads the weights again."""
    return _summed([least_work(dense, experts, routing) for routing in passes])


def training_work(
    dense: DenseWork | None, experts: ExpertsWork, routing: PassRouting, adapters: tuple[int, int]
) -> Work:
    """Work of a training step that was routed as `routing` (see `Work.trained`).

    `adapters` counts LoRA's weights that every token meets, and those of one expert of every layer. Without `dense` of
    the experts alone, where a device does the rest.
    """
    forward, shape = least_work(dense, experts, routing), experts.shape
    head = 0 if dense is None else 2 * forward.tokens * shape.vocab * shape.hidden
    return forward.trained(head=head, layers=shape.layers, lora=adapters[0] + shape.top_k * adapters[1])


def layer_work(experts: ExpertsWork, routing: Routing) -> Work:
    """Work of the routed experts of one layer alone."""
    flops = 2 * experts.products([routing])
    return Work(weight_bytes=experts.weight_bytes([routing]), flops=flops, tokens=len(routing.ids))


def mean_work(works: Sequence[Work]) -> Work:
    """The average of the steps of a workload, which may differ in how many experts they read."""
    return Work(**{name: round(total / len(works)) for name, total in asdict(_summed(works)).items()})


def _summed(works: Sequence[Work]) -> Work:
    return Work(**{one.name: sum(getattr(work, one.name) for work in works) for one in fields(Work)})
