"""The routed experts of a network as Transformers has them: which implementation runs, and what they are called with.

Letters: T tokens, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.experts import OriginalExperts, Tap
from ktbench.engine.forms import expert_places
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import from_router
from ktbench.spec.peers import Implementation


class PlainExperts:
    """The experts modules of all layers, by decoder layer. Nothing is put in their place.

    Raises ValueError for experts that `read_form` refuses.
    """

    def __init__(self, network: PreTrainedModel, top_k: int) -> None:
        self._network, self._top_k = network, top_k
        self.layers = {
            place.layer: OriginalExperts(network.get_submodule(name)) for name, place in expert_places(network)
        }

    def run_as(self, implementation: Implementation) -> None:
        """All experts run so from now on. Raises Unsupported where they do not, or cannot on this machine."""
        switch: Any = self._network.set_experts_implementation
        try:
            switch(implementation)
        except (ValueError, ImportError) as error:
            raise Unsupported(_refused(implementation, error)) from None
        for experts in self.layers.values():
            if (runs := _implementation(experts.module)) != implementation:
                raise Unsupported(f"{type(experts.module).__name__} runs {runs} when told to run {implementation}")
        self._try(implementation)

    def _try(self, implementation: Implementation) -> None:
        """A token through the experts of one layer: kernels refuse shapes when they are called."""
        experts = next(iter(self.layers.values()))
        hidden = torch.zeros(1, experts.form.hidden, dtype=experts.module.get_parameter("down_proj").dtype)
        gates = torch.full((1, self._top_k), 1 / self._top_k, dtype=hidden.dtype)
        try:
            with torch.inference_mode():
                experts.module(hidden, torch.arange(self._top_k)[None], gates)
        except (RuntimeError, NotImplementedError) as error:
            raise Unsupported(_refused(implementation, error)) from None

    @contextmanager
    def tapped(self, tap: Tap) -> Iterator[None]:
        """Meanwhile `tap` sees every call: the layer, hidden [T, H], the routing and the output [T, H]."""
        with ExitStack() as stack:
            for layer, experts in self.layers.items():
                stack.enter_context(experts.module.register_forward_hook(partial(_seen, tap, layer)))
            yield


def _seen(tap: Tap, layer: int, _module: nn.Module, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    hidden, ids, gates = inputs
    tap(layer, hidden, from_router(ids, gates), output)


def _implementation(module: nn.Module) -> str:
    """What a call would run: modules that Transformers' `use_experts_implementation` has not seen have one way only."""
    if not hasattr(module, "is_concatenated"):
        return "eager"
    runs: Any = module.config
    return str(runs._experts_implementation)


def _refused(implementation: Implementation, error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    return f"experts_implementation={implementation} is refused: {reason}"
