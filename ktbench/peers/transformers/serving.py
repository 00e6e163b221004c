"""Transformers' own continuous batching as a serving engine: its own thread generates and delivers tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.serving.requests import ServeRequest, ServingState, TokenEvent
from ktbench.peers.transformers.system import open_transformers
from ktbench.spec.run_spec import RunSpec

_PAGE = 256  # the manager's own default
_POLL_S = 0.01  # arrivals are noticed after at most this long


def open_serving(specs: Sequence[RunSpec], host: HostRole) -> TransformersServing:
    """Plain Transformers with its manager. Raises like `open_transformers`, and Unsupported if it does not start."""
    spec = specs[0]
    network: Any = open_transformers(spec.model, host).network
    network.set_experts_implementation(spec.peer.implementation)
    torch.set_num_threads(host.threads_of(spec.engine))
    return TransformersServing(network, spec.model.shape.positions, spec.engine.serving.cache_tokens or 1 << 16)


class TransformersServing:
    """Implements `ServingEngine` with a `ContinuousBatchingManager`, without prefix sharing."""

    def __init__(self, network: Any, positions: int, cache_tokens: int) -> None:
        self.max_positions = min(positions, cache_tokens)
        self._given: dict[str, tuple[ServeRequest, int]] = {}
        config = ContinuousBatchingConfig(
            page_size=_PAGE, num_blocks=-(-cache_tokens // _PAGE), max_batch_tokens=512, allow_block_sharing=False
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)  # type: ignore[no-untyped-call]
        try:
            self._manager: Any = network.init_continuous_batching(greedy, config)
            self._manager.start()
        except (ImportError, RuntimeError, ValueError, AttributeError) as error:
            raise Unsupported(f"Transformers' continuous batching does not start: {error}") from None

    def submit(self, request: ServeRequest) -> None:
        """See `ServingEngine`; the manager has its own queue."""
        self._given[request.key] = request, 0
        self._manager.add_request(
            list(request.prompt), request.key, max_new_tokens=request.max_new, streaming=True, eos_token_id=-1
        )

    def cancel(self, key: str) -> None:
        if self._given.pop(key, None) is not None:
            self._manager.cancel_request(key)

    def step(self) -> list[TokenEvent]:
        """See `ServingEngine`: empty if nothing arrives for a while. Raises RuntimeError if its thread has ended."""
        output = self._manager.get_result(timeout=_POLL_S)
        if output is None:
            if self._given and not self._manager.is_running():
                raise RuntimeError("the thread of Transformers' continuous batching has ended")
            return []
        return self._events(output)

    def _events(self, output: Any) -> list[TokenEvent]:
        if output.request_id not in self._given:
            return []
        request, before = self._given[output.request_id]
        tokens, ends = output.generated_tokens, output.is_finished()
        if output.error is not None:
            del self._given[output.request_id]
            return [TokenEvent(key=request.key, token=None, finish="error", why=str(output.error))]
        events = [TokenEvent(key=request.key, token=int(token)) for token in tokens[before:]]
        self._given[request.key] = request, len(tokens)
        if ends:
            del self._given[request.key]
            last = events.pop().token if events else None
            events.append(TokenEvent(key=request.key, token=last, finish="length"))
        return events

    @property
    def state(self) -> ServingState:
        """The manager does not say which requests wait: all sent ones count as running."""
        return ServingState(waiting=0, running=len(self._given), pages=0, free_pages=0, cached_pages=0, page_tokens=1)

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """End the manager's thread."""
        self._manager.stop(block=True)
        del self._manager
