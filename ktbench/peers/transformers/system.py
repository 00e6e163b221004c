"""Plain Transformers as a system: on the same ids and context depths as our engine, tuned only in threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.backend import MoERuntimeState, Tap
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertFunctions, expert_positions
from ktbench.engine.loading.network import load_network
from ktbench.engine.protocol import HostRole, System, Unsupported, require
from ktbench.engine.replay import ReplaySystem, TraceReplay
from ktbench.engine.routing import Routing, from_router
from ktbench.engine.work import ExpertsWork, dense_params, mean_work, step_work
from ktbench.engine.workload_trace import TraceWriter, WorkloadTrace, pass_runner
from ktbench.peers.layers import refusals_of
from ktbench.peers.transformers.layer import open_layer
from ktbench.peers.transformers.own import experts_words, set_experts_implementation
from ktbench.peers.tuning import StepsBench, ThreadCount, Tuned, Tuner, thread_counts, vary
from ktbench.spec.peers import IMPLEMENTATION_OWN, Implementation, PeerSpec
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.step.work import DenseWork
from ktbench.spec.timeline import Timeline


class PlainExperts:
    """The experts modules of all layers, by decoder layer. They are not replaced.

    Raises ValueError for experts that `read_form` rejects.
    """

    def __init__(self, network: PreTrainedModel, top_k: int) -> None:
        self._network, self._top_k = network, top_k
        self.layers = {
            place.layer: OriginalExperts(network.get_submodule(name)) for name, place in expert_positions(network)
        }

    def run_as(self, peer: PeerSpec) -> None:
        """Make all experts run this implementation. Raises Unsupported if they do not, or cannot on this machine."""
        implementation = peer.implementation
        for experts in self.layers.values():
            set_experts_implementation(experts, peer)
        if implementation == IMPLEMENTATION_OWN:
            self._try(f"peer.operator={peer.operator}", Exception)
            return
        switch: Any = self._network.set_experts_implementation
        with refusals_of(f"experts_implementation={implementation}", ValueError, ImportError):
            switch(implementation)
        for experts in self.layers.values():
            if (runs := _implementation(experts.module)) != implementation:
                raise Unsupported(f"{type(experts.module).__name__} runs {runs} instead of {implementation}")
        self._try(f"experts_implementation={implementation}", RuntimeError)

    def _try(self, what: str, kind: type[Exception]) -> None:
        """Run a token through the experts of one layer: kernels reject shapes when they are called."""
        experts = next(iter(self.layers.values()))
        hidden = torch.zeros(1, experts.form.hidden, dtype=experts.module.get_parameter("down_proj").dtype)
        gates = torch.full((1, self._top_k), 1 / self._top_k, dtype=hidden.dtype)
        with refusals_of(what, kind), torch.inference_mode():
            experts.module(hidden, torch.arange(self._top_k)[None], gates)

    @contextmanager
    def attach_tap(self, tap: Tap) -> Iterator[None]:
        """Inside, `tap` sees every call: the layer, hidden [T, H], the routing and the output [T, H].

        The inputs are as they were when the call began, even if it changed them.
        """
        with ExitStack() as stack:
            for layer, experts in self.layers.items():
                call = _Call(tap, layer)
                stack.enter_context(experts.module.register_forward_pre_hook(call.begin))
                stack.enter_context(experts.module.register_forward_hook(call.end))
            yield


class _Call:
    """A call of a layer's experts that a tap observes."""

    def __init__(self, tap: Tap, layer: int) -> None:
        self._tap, self._layer = tap, layer
        self._inputs: tuple[Tensor, ...] = ()

    def begin(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Before the operator has the inputs (hidden, ids, weights)."""
        self._inputs = tuple(tensor.clone() for tensor in inputs)

    def end(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """After it has returned its output."""
        hidden, ids, gates = self._inputs
        self._tap(self._layer, hidden, from_router(ids, gates), output)


def _implementation(module: nn.Module) -> str:
    """The implementation of a call: modules without Transformers' `use_experts_implementation` have only one."""
    if not hasattr(module, "is_concatenated"):
        return "eager"
    runs: Any = module.config
    return str(runs._experts_implementation)


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> System:
    """Plain Transformers for cells that share weights. Raises like `open_transformers` and `open_layer`."""
    model = specs[0].model
    return open_layer(model, host) if specs[0].workload.phase == "layer" else open_transformers(model, host)


def open_transformers(model: ModelSpec, host: HostRole) -> PlainTransformers:
    """Plain Transformers on the cores of `host`, for cells of prefill and decode with any experts implementation.

    Raises ValueError for an incomplete checkpoint and for experts that `read_form` rejects: their calls could not be
    checked.
    """
    return PlainTransformers(model, load_network(model, keep_experts=True).network, host)


class PlainTransformers(ReplaySystem):
    """Implements `ktbench.engine.protocol.System`; made by `ktbench.peers.transformers.system.open_transformers`."""

    def __init__(self, model: ModelSpec, network: PreTrainedModel, host: HostRole) -> None:
        super().__init__(model, network)
        self.network, self._host = network, host
        self._experts = PlainExperts(network, model.shape.top_k)
        self._params = dense_params(network)
        self._state = MoERuntimeState()
        self._tunings: dict[tuple[WorkloadSpec, Implementation, str, int], Tuned[ThreadCount]] = {}

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model or a thread count that is not loaded."""
        require(spec, self.model)
        self._experts.run_as(spec.peer)
        self._trace = self._traces.of(spec.workload, lambda: self._write(spec))
        runner = pass_runner(spec.workload, self._forward, self._state)
        self._replay = TraceReplay(self._trace, runner)
        tuned = self._tune(spec)
        threads = tuned.settings.threads
        torch.set_num_threads(threads)
        self._notes = [tuned.explain(spec.label), self._describe(spec, threads)]
        self.start()

    def _write(self, spec: RunSpec) -> WorkloadTrace:
        """All implementations continue from the cache of one prompt, run by eager, which fits in memory and is base's.

        The routing is recorded only for `work`: the network routes every step itself.
        """
        torch.set_num_threads(self._host.threads_of(spec.engine))
        self._experts.run_as(PeerSpec(implementation="eager"))
        writer = TraceWriter(workload=spec.workload, shape=self.model.shape, forward=self._forward, state=self._state)
        with self._experts.attach_tap(lambda _layer, _hidden, routing, _output: self._record(routing)):
            trace = writer.write()
        self._experts.run_as(spec.peer)
        return trace

    def _record(self, routing: Routing) -> None:
        assert self._state.record is not None
        self._state.record.append(routing)

    def _tune(self, spec: RunSpec) -> Tuned[ThreadCount]:
        """Tune before the first trial of a workload with an implementation."""
        most = self._host.threads_of(spec.engine)
        key = (spec.workload, spec.peer.implementation, spec.peer.operator_id, most)
        if key not in self._tunings:
            walk = vary("threads", thread_counts(most)[1:])
            steps = self._endless_steps()

            def steps_on(settings: ThreadCount) -> Iterator[None]:
                torch.set_num_threads(settings.threads)
                return steps

            self._tunings[key] = Tuner(StepsBench(steps_on), spec.peer.tune_s).tune(ThreadCount(threads=most), [walk])
        return self._tunings[key]

    def _endless_steps(self) -> Iterator[None]:
        while True:
            self._replayed.start()
            for _ in self._traced.ids:
                self._replayed.step()
                yield

    def _describe(self, spec: RunSpec, threads: int) -> str:
        attention = self.network.config._attn_implementation
        return (
            f"{spec.label}: Transformers {transformers.__version__} as it is, "
            f"{experts_words(spec.peer)}, attn_implementation={attention}, "
            f"on PyTorch {torch.__version__} with {threads} threads"
        )

    def _tapped(self, tap: Tap) -> AbstractContextManager[None]:
        return self._experts.attach_tap(tap)

    def _experts_of(self, layer: int) -> ExpertFunctions:
        return self._experts.layers[layer].in_float32

    def _moe_layers(self) -> tuple[int, ...]:
        return tuple(self._experts.layers)

    def _run_experts(self, layer: int, hidden: Tensor, routing: Routing) -> Tensor:
        return self._experts.layers[layer](hidden, routing)

    def counters(self) -> Mapping[str, int]:
        """See `System`. None: it has none of our features."""
        return {}

    def timeline(self) -> Timeline:
        """See `System`. Raises Unsupported: one role does everything."""
        raise Unsupported("plain Transformers runs everything on the same threads: there are no roles to draw")

    def chosen(self) -> Mapping[str, int]:
        return {}

    def work(self) -> Work:
        batch = self._traced.workload.batch
        dense = DenseWork(params=self._params, nbytes=2 * self._params, batch=batch)
        experts = ExpertsWork(shape=self.model.shape, precisions=(("bf16", "bf16"),))
        return mean_work([step_work(dense, experts, passes) for passes in self._traced.routing])

    def close(self) -> None:
        super().close()
        del self.network, self._experts
