"""Routed experts that live with the device: weights in fixed slots, run by fixed operations on fixed shapes.

Letters: T tokens of a call, k experts of a token, P = T·k pairs, S slots, H hidden width, I expert width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.forms import Biases, ExpertMatrices, ExpertStore, Glu
from ktbench.engine.routing import Routing
from ktbench.spec.weights import PAIRS_AT_ONCE

# Pairs up to which copies of weights are made where there is no better way.
_FEW = 64
# Major compute capabilities on which PyTorch runs a grouped product as one kernel; on others it reads the ends of the
# groups back to the host (ATen, GroupedBlas.cpp), which a graph cannot.
_GROUPED = (9, 10)
# Products of rows [P, K], whose slots are sorted, with the weights [S, N, K] of their slots: [P, N]. Rows of no expert,
# whose slot is S, may hold anything.
Product = Callable[[Tensor, Tensor], Tensor]


class ExpertWeights(NamedTuple):
    """Of C experts on the device: `gate_up` [C, 2 I, H] and `down` [C, H, I] bf16, biases of both float32 or none."""

    gate_up: Tensor
    down: Tensor
    biases: tuple[Tensor, Tensor] | None = None


def grouped_mlp(product: Product, rows: Tensor, own: Tensor, weights: ExpertWeights, glu: Glu) -> Tensor:
    """[P, H] float32 of `rows` [P, H] bf16: what the experts numbered `own` [P] make of them."""
    gate_up = product(rows, weights.gate_up).float()
    if weights.biases is not None:
        gate_up += weights.biases[0][own]
    outputs = product(glu(*gate_up.chunk(2, dim=1)).to(rows.dtype), weights.down).float()
    if weights.biases is not None:
        outputs += weights.biases[1][own]
    return outputs


class ExpertSlots(ExpertsBackend):
    """ExpertsBackend of the experts of one layer that live with the device, each in a slot. Other ids are ignored.

    Nothing waits for the device or has a shape that depends on data, so calls can be captured, and a captured call sees
    the experts that have moved in since.
    """

    def __init__(self, experts: int, placed: Sequence[int], device: torch.device) -> None:
        """For the experts `placed` of E = `experts`. Raises ValueError where that is none, or one twice."""
        if not placed or len(set(placed)) < len(placed):
            raise ValueError(f"experts {list(placed)} at the device: must be one or more, each once")
        self._slots = {expert: slot for slot, expert in enumerate(placed)}
        # One more than there are experts: -1, which is no expert, finds the last one.
        self._slot_of = torch.full((experts + 1,), len(placed), dtype=torch.int64, device=device)
        for expert, slot in self._slots.items():
            self._slot_of[expert] = slot

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] of `hidden` [T, H] bf16: the gate-weighted sum over those of each token's experts that live here."""
        tokens, k = routing.ids.shape
        slots, order = self._slot_of[routing.ids.flatten()].sort(stable=True)
        outputs = self._run(hidden[order // k], slots)
        outputs.mul_(routing.gates.flatten()[order, None])
        outputs.masked_fill_((slots == len(self._slots))[:, None], 0.0)  # rows that no product wrote may hold NaN
        by_token = torch.empty_like(outputs).index_copy_(0, order, outputs)
        return by_token.view(tokens, k, -1).sum(dim=1).to(hidden.dtype)

    def _run(self, rows: Tensor, slots: Tensor) -> Tensor:
        """[P, H] float32: what the expert in each row's slot makes of it; slots are sorted, S is that of no expert."""
        raise NotImplementedError

    def take(self, incoming: int, outgoing: int) -> int:
        """Give the slot of expert `outgoing` to `incoming`, in the order of the device's work. Returns its number.

        Raises ValueError where `incoming` lives here already or `outgoing` does not.
        """
        if incoming in self._slots or outgoing not in self._slots:
            raise ValueError(
                f"expert {incoming} cannot take the place of {outgoing}: at the device are {sorted(self._slots)}"
            )
        slot = self._slots[incoming] = self._slots.pop(outgoing)
        self._slot_of[outgoing] = len(self._slots)
        self._slot_of[incoming] = slot
        return slot

    def slot(self, i: int) -> int:
        """That of expert `i`. Raises ValueError where it does not live here."""
        if i not in self._slots:
            raise ValueError(f"expert {i} is not at the device: there are {sorted(self._slots)}")
        return self._slots[i]


class SlotExperts(ExpertSlots):
    """Experts in bf16, whose products read the weights where they lie."""

    def __init__(self, experts: int, placed: Sequence[int], store: ExpertStore, device: torch.device) -> None:
        """See `ExpertSlots`; `store` gives the weights, on the host or on `device`."""
        super().__init__(experts, placed, device)
        self._groups, self._pinned = groups_at_once(device), device.type == "cuda"
        first = store(placed[0])
        self._glu, (ffn, hidden) = first.glu, first.gate.shape

        def room(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(len(placed), *sizes, dtype=dtype, device=device)

        self._gate_up, self._down = room(2 * ffn, hidden), room(hidden, ffn)
        self._biases: tuple[Tensor, Tensor] | None = None
        if first.biases is not None:
            self._biases = room(2 * ffn, dtype=torch.float32), room(hidden, dtype=torch.float32)
        for expert, slot in self._slots.items():
            self._write(slot, store(expert))

    def _run(self, rows: Tensor, slots: Tensor) -> Tensor:
        count = len(self._slots)
        product = gathered_product(slots, count) if gathers(self._groups, len(rows)) else grouped_product(slots, count)
        weights = ExpertWeights(self._gate_up, self._down, self._biases)
        return grouped_mlp(product, rows, slots.clamp(max=count - 1), weights, self._glu)

    def move(self, incoming: int, outgoing: int, matrices: ExpertMatrices) -> None:
        """Expert `incoming` with these weights takes the slot of expert `outgoing`; see `take`."""
        self._write(self.take(incoming, outgoing), matrices)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as they are held. Raises ValueError where it does not live here."""
        slot = self.slot(i)
        gate, up = self._gate_up[slot].chunk(2)
        biases = None
        if self._biases is not None:
            gate_bias, up_bias = self._biases[0][slot].chunk(2)
            biases = Biases(gate_bias, up_bias, self._biases[1][slot])
        return ExpertMatrices(gate=gate, up=up, down=self._down[slot], biases=biases, glu=self._glu)

    def _write(self, slot: int, matrices: ExpertMatrices) -> None:
        self._fill(self._gate_up[slot], matrices.gate, matrices.up)
        self._fill(self._down[slot], matrices.down)
        if self._biases is not None and matrices.biases is not None:
            self._fill(self._biases[0][slot], matrices.biases.gate, matrices.biases.up)
            self._fill(self._biases[1][slot], matrices.biases.down)

    def _fill(self, to: Tensor, *parts: Tensor) -> None:
        """Rows of `to` from the parts in order; from the host by one copy that Python does not wait for.

        PyTorch keeps pinned memory from its next user until the copy is done.
        """
        is_here = parts[0].device == to.device
        staged = to if is_here else torch.empty(to.shape, dtype=to.dtype, pin_memory=self._pinned)
        for rows, part in zip(staged.chunk(len(parts)), parts, strict=True):
            rows.copy_(part)
        if not is_here:
            to.copy_(staged, non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the device that the slots take."""
        return sum(held.nbytes for held in (self._gate_up, self._down, *(self._biases or ())))


def groups_at_once(device: torch.device) -> bool:
    """Whether a grouped product is one kernel there, with nothing read back."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in _GROUPED


def gathers(groups: bool, pairs: int) -> bool:
    """Whether the weights of so few pairs are copied for each, on a device that `groups` at once or not."""
    return not groups and pairs <= _FEW


def grouped_product(slots: Tensor, count: int) -> Product:
    """Products by PyTorch's grouped one, which reads the weights of the slots in `slots` [P] where they lie."""
    return grouped_by(torch.searchsorted(slots, torch.arange(count, device=slots.device), right=True, out_int32=True))


def grouped_by(ends: Tensor) -> Product:
    """The same where the rows of each slot end at `ends` [S] int32; rows after the last end are left as they are."""
    return lambda rows, weights: grouped_mm(rows, weights.transpose(1, 2), offs=ends)


def gathered_product(slots: Tensor, count: int) -> Product:
    """Products with copies of the weights of the slots in `slots` [P], some pairs after the others."""
    parts = torch.split(slots.clamp(max=count - 1), PAIRS_AT_ONCE)

    def product(rows: Tensor, weights: Tensor) -> Tensor:
        pieces = zip(parts, torch.split(rows, PAIRS_AT_ONCE), strict=True)
        return torch.cat([weights[some] @ row[:, :, None] for some, row in pieces])[:, :, 0]

    return product
