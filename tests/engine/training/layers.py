"""A small layer of routed experts in float64, and what packed copies of it give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ktbench._kernels import ExpertProducts, PackedExperts, ThreadPool
from ktbench.engine.forms import Biases, ExpertMatrices, Glu
from ktbench.engine.training.adapters import ExpertAdapter
from ktbench.engine.training.function import NOT_ADAPTED, Adapters, ExpertBiases, FrozenExperts, experts_autograd
from ktbench.engine.training.products import Matrices, PackedProducts, Products
from ktbench.engine.training.slots import LoraSlots

EXPERTS, HIDDEN, WIDTH = 5, 70, 40
SILU = Glu()


def bits(matrix: Tensor) -> object:
    return matrix.bfloat16().contiguous().view(torch.uint16).numpy()


def random_experts(
    seed: int, hidden: int = HIDDEN, width: int = WIDTH, *, biases: bool = False, glu: Glu = SILU
) -> list[ExpertMatrices]:
    """In float64, of numbers that bf16 holds."""
    draw = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=draw) / shape[-1] ** 0.5).bfloat16().double()

    return [
        ExpertMatrices(
            gate=matrix(width, hidden),
            up=matrix(width, hidden),
            down=matrix(hidden, width),
            biases=Biases(matrix(width), matrix(width), matrix(hidden)) if biases else None,
            glu=glu,
        )
        for _ in range(EXPERTS)
    ]


def pack(experts: list[ExpertMatrices], precision: str = "bf16", domains: int = 1) -> PackedExperts:
    width, hidden = experts[0].gate.shape
    packed = PackedExperts(len(experts), hidden, width, precision, domains)
    for i, one in enumerate(experts):
        packed.write_expert(i, bits(one.gate), bits(one.up), bits(one.down))
    return packed


def stored(packed: PackedExperts, like: list[ExpertMatrices]) -> list[ExpertMatrices]:
    """The same experts with the weights that were packed, float64."""
    matrices = [[torch.from_numpy(m).double() for m in packed.read_expert(i)] for i in range(len(like))]
    return [replace(one, gate=m[0], up=m[1], down=m[2]) for one, m in zip(like, matrices, strict=True)]


class DenseProducts(Products):
    """By PyTorch, on matrices in any type."""

    def __init__(self, experts: Sequence[ExpertMatrices]) -> None:
        self._gate_up = [torch.cat([one.gate, one.up]) for one in experts]
        self._down = [one.down for one in experts]

    def forward(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots) -> Tensor:
        return self._multiply([matrix.T for matrix in self._of(which)], rows[row], slots)

    def transposed(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots) -> Tensor:
        return self._multiply(self._of(which), rows[row], slots)

    def _of(self, which: Matrices) -> list[Tensor]:
        return self._gate_up if which == "gate_up" else self._down

    @staticmethod
    def _multiply(matrices: Sequence[Tensor], rows: Tensor, slots: LoraSlots) -> Tensor:
        out = rows.new_zeros(len(rows), matrices[0].shape[1])
        for expert, group in slots.groups():
            out[group] = rows[group].to(matrices[expert].dtype) @ matrices[expert]
        return out


def dense(experts: list[ExpertMatrices], *, recompute: bool = True) -> FrozenExperts:
    """Run by PyTorch in the type of the matrices."""
    biases = None
    if experts[0].biases is not None:
        parts = [one.biases for one in experts if one.biases is not None]
        biases = ExpertBiases(
            gate_up=torch.stack([torch.cat([b.gate, b.up]) for b in parts]), down=torch.stack([b.down for b in parts])
        )
    return FrozenExperts(
        experts=len(experts), products=DenseProducts(experts), glu=experts[0].glu, biases=biases, recompute=recompute
    )


def by_kernels(packed: PackedExperts, pool: ThreadPool, *, recompute: bool = True, **kernels: object) -> FrozenExperts:
    kernels = kernels or {"isa": "reference"}
    return FrozenExperts(
        experts=packed.experts,
        products=PackedProducts(ExpertProducts(packed, pool), packed, kernels),
        glu=Glu(),
        recompute=recompute,
    )


def random_adapters(seed: int, hidden: int = HIDDEN, width: int = WIDTH, rank: int = 3) -> Adapters:
    draw = torch.Generator().manual_seed(seed)

    def factor(*shape: int) -> Tensor:
        return torch.randn(EXPERTS, *shape, generator=draw, dtype=torch.float64) / shape[-1] ** 0.5

    return Adapters(
        gate_up=ExpertAdapter(a=factor(rank, hidden), b=factor(2 * width, rank), scale=0.5),
        down=ExpertAdapter(a=factor(rank, width), b=factor(hidden, rank), scale=2.0),
    )


def with_factors(adapters: Adapters, factors: Sequence[Tensor]) -> Adapters:
    """The same with these factors: A and B of gate and up, then of down."""
    assert adapters.gate_up is not None
    assert adapters.down is not None
    a1, b1, a2, b2 = factors
    return Adapters(gate_up=replace(adapters.gate_up, a=a1, b=b1), down=replace(adapters.down, a=a2, b=b2))


@dataclass(frozen=True)
class Call:
    hidden: Tensor
    ids: Tensor
    gates: Tensor
    grad: Tensor  # of the output

    @classmethod
    def of(cls, ids: Tensor, seed: int = 0, hidden: int = HIDDEN) -> Call:
        draw = torch.Generator().manual_seed(seed)
        rows = [torch.randn(len(ids), hidden, generator=draw).bfloat16().double() for _ in range(2)]
        return cls(rows[0], ids, torch.rand(ids.shape, generator=draw).double(), rows[1])

    def gradients(
        self, frozen: FrozenExperts, adapters: Adapters = NOT_ADAPTED, dtype: torch.dtype = torch.float64
    ) -> list[Tensor]:
        """Output, gradients of hidden states and gates, then of the adapters' factors; float64."""
        hidden = self.hidden.to(dtype, copy=True).requires_grad_()
        of_gates = torch.float64 if dtype == torch.float64 else torch.float32
        gates = self.gates.to(of_gates, copy=True).requires_grad_()
        factors = [one.detach().clone().requires_grad_() for one in adapters.factors if one is not None]
        if factors:
            adapters = with_factors(adapters, factors)
        output = experts_autograd(frozen, hidden, self.ids, gates, adapters)
        output.backward(self.grad.to(output.dtype))
        return [output.detach().double(), *(one.grad.double() for one in (hidden, gates, *factors))]


def plain(
    experts: list[ExpertMatrices], hidden: Tensor, ids: Tensor, gates: Tensor, adapters: Adapters = NOT_ADAPTED
) -> Tensor:
    """The definition, token by token and differentiable by PyTorch alone."""
    rows = []
    for token, chosen, weights in zip(hidden, ids, gates, strict=True):
        total = torch.zeros_like(token)
        for i, weight in zip(chosen.tolist(), weights, strict=True):
            if i >= 0:
                total = total + weight * _expert(experts[i], i, token, adapters)
        rows.append(total)
    return torch.stack(rows)


def _expert(one: ExpertMatrices, i: int, token: Tensor, adapters: Adapters) -> Tensor:
    gate_up = torch.cat([one.gate, one.up])
    scores = gate_up @ token + _low_rank(adapters.gate_up, i, token)
    if one.biases is not None:
        scores = scores + torch.cat([one.biases.gate, one.biases.up])
    gated = one.glu(*scores.chunk(2))
    output = one.down @ gated + _low_rank(adapters.down, i, gated)
    return output if one.biases is None else output + one.biases.down


def _low_rank(adapter: ExpertAdapter | None, i: int, token: Tensor) -> Tensor | float:
    return 0.0 if adapter is None else adapter.scale * (adapter.b[i] @ (adapter.a[i] @ token))


def error(seen: Tensor, truth: Tensor) -> float:
    """Norm of the error over that of the truth."""
    return float((seen - truth).norm() / truth.norm().clamp_min(1e-30))
