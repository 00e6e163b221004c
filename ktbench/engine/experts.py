"""Routed experts as Transformers runs them, and their output in float32 arithmetic.

Letters: T tokens, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ktbench.engine.form import read_form
from ktbench.engine.matrices import ExpertMatrices, ExpertStore
from ktbench.engine.routing import Routing
from ktbench.engine.step.later import Fetch


class Reference:
    """The experts' output in float32 arithmetic for `hidden` [T, H] float32.

    Each expert is run once, whatever the number of routings asked for. An id of -1 is nobody.
    """

    def __init__(self, store: ExpertStore, hidden: Tensor) -> None:
        self.hidden = hidden
        self._store = store
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, routing: Routing) -> Tensor:
        """[T, H] float32: the sum over each token's experts of gate weight times output."""
        total = torch.zeros_like(self.hidden)
        for i in sorted(set(routing.ids.flatten().tolist()) - {-1}):
            token, column = (routing.ids == i).nonzero(as_tuple=True)
            total.index_add_(0, token, self._output(i)[token] * routing.gates[token, column, None])
        return total

    def _output(self, i: int) -> Tensor:
        if i not in self._outputs:
            self._outputs[i] = self._store(i)(self.hidden)
        return self._outputs[i]


class OriginalExperts:
    """The module of Transformers: runs the experts one after the other through PyTorch (the base of the breakdown).

    Raises ValueError for a module that `read_form` refuses.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.form = module, read_form(module)

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]. Not every family knows of nobody (-1): somebody with no weight."""
        ids, gates, nobody = routing.ids, routing.gates, routing.ids < 0
        if nobody.any():
            ids, gates = ids.masked_fill(nobody, 0), gates.masked_fill(nobody, 0)
        output: Tensor = self.module(hidden, ids, gates)
        return output

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Done at once: PyTorch runs it on the caller's threads."""
        output = self(hidden, routing)
        return lambda: output

    def bind(self, hidden: Tensor, routing: Routing, _output: Tensor) -> Callable[[], Tensor]:
        """The call on `hidden` [T, H]; the module makes an output of its own every time."""
        return torch.inference_mode()(partial(self, hidden, routing))

    def matrices(self, i: int) -> ExpertMatrices:
        """Views of the weights of expert `i`."""
        return self.form.matrices(self.module, i)
