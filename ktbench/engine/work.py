"""The least work of a step: the roof that a cell is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor, nn

from ktbench.engine.forms import is_experts
from ktbench.engine.routing import PassRouting, Routing
from ktbench.spec.record import Work
from ktbench.spec.shape import MoEShape
from ktbench.spec.step.work import DenseWork, least_work, total_work, trained_work
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

    def selections(self, layers: Iterable[Routing]) -> int:
        """Experts that tokens run, over all tokens and layers."""
        return sum(ids.numel() for ids in self._run(layers))

    def _run(self, layers: Iterable[Routing]) -> Iterator[Tensor]:
        """Of every layer the experts that its tokens run, one for each token that does."""
        for number, layer in enumerate(layers):
            ids = (layer.split(self.skipping)[0] if self.skipping else layer).ids
            yield ids[~self.elsewhere[number].to(ids.device)[ids]] if self.elsewhere else ids


def dense_params(network: nn.Module) -> int:
    """Weights that every token meets: all but routed experts and embedding. A head tied to the embedding counts."""
    outside = {id(p) for m in network.modules() if is_experts(m) for p in m.parameters()}
    outside |= {id(p) for m in network.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    outside -= {id(network.get_parameter("lm_head.weight"))}
    return sum(p.numel() for p in network.parameters() if id(p) not in outside)


def pass_work(dense: DenseWork | None, experts: ExpertsWork, routing: PassRouting | Sequence[Routing]) -> Work:
    """Work of one pass that was routed as `routing`: its tokens in, logits at `dense.batch` positions out."""
    return least_work(
        experts.shape,
        dense,
        tokens=len(routing[0].ids),
        selections=experts.selections(routing),
        experts_bytes=experts.weight_bytes(routing),
    )


def step_work(dense: DenseWork | None, experts: ExpertsWork, passes: Sequence[PassRouting]) -> Work:
    """Work of a step of several passes: each chunk of a prompt reads the weights again."""
    return total_work([pass_work(dense, experts, routing) for routing in passes])


def training_work(
    dense: DenseWork | None, experts: ExpertsWork, routing: PassRouting, adapters: tuple[int, int]
) -> Work:
    """Work of a training step that was routed as `routing`.

    `adapters` counts LoRA's weights that every token meets, and those of one expert of every layer.
    """
    attention, expert = adapters
    forward = pass_work(dense, experts, routing)
    return trained_work(forward, experts.shape, on_device=dense is None, attention=attention, expert=expert)


def mean_work(works: Sequence[Work]) -> Work:
    """The average of the steps of a workload, which may differ in how many experts they read."""
    return Work(**{name: round(total / len(works)) for name, total in asdict(total_work(works)).items()})
