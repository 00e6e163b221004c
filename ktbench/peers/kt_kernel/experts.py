"""kt-kernel as a backend of routed experts.

Letters: T tokens, k experts of a token, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.forms import ExpertMatrices, ExpertStore
from ktbench.engine.layer import Call
from ktbench.engine.routing import Routing
from ktbench.peers.kt_kernel.library import Pool
from ktbench.peers.kt_kernel.quantised import as_stored


@dataclass(frozen=True, kw_only=True, slots=True)
class KtExperts:
    """One layer on one pool: `experts` is kt-kernel's object, `store` gives the bf16 weights that went into it.

    Implements `BindableBackend`.
    """

    experts: Any
    pool: Pool
    store: ExpertStore
    kind: str
    pools: int
    most_tokens: int

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16. Raises ValueError for more tokens than there is room for."""
        hidden = hidden.contiguous()
        return self.bind(hidden, routing, torch.empty_like(hidden))()

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Done at once, as with the other backends that have no role to themselves."""
        output = self(hidden, routing)
        return lambda: output

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor) -> Call:
        """The call on `hidden` [T, H] that writes `output` [T, H], both bf16 and contiguous.

        Raises ValueError for more tokens than there is room for: kt-kernel does not look.
        """
        if len(hidden) > self.most_tokens:
            raise ValueError(f"kt-kernel was given room for {self.most_tokens} tokens, this call has {len(hidden)}")
        count = torch.tensor([len(hidden)], dtype=torch.int32)
        ids, gates = routing.ids.contiguous(), routing.gates.contiguous()
        pointers = (tensor.data_ptr() for tensor in (ids, gates, hidden, output))
        task = self.experts.forward_task(count.data_ptr(), ids.shape[1], *pointers, False)
        return _Task(pool=self.pool, task=task, arrays=(count, ids, gates, hidden), output=output)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as kt-kernel stores them, float32."""
        return as_stored(self.store(i), self.kind, self.pools)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """A task of kt-kernel and the memory that it points at."""

    pool: Pool
    task: Any
    arrays: tuple[Tensor, ...]
    output: Tensor

    def __call__(self) -> Tensor:
        self.pool.run(self.task)
        return self.output
