"""The fused operator: packed experts of a layer, run by the kernel extension on PyTorch's own threads or a pool."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench._kernels import (
    ExpertProducts,
    HandOver,
    HostCall,
    MoE,
    OpenMPTeam,
    PackedExperts,
    Prepared,
    Team,
    ThreadPool,
)
from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.forms import (
    Biases,
    ExpertBlocks,
    ExpertFunction,
    ExpertMatrices,
    ExpertsForm,
    PackableStore,
    as_numpy,
)
from ktbench.engine.loading.packed_folder import PackedFiles
from ktbench.engine.protocol import Unsupported
from ktbench.engine.roles import reach
from ktbench.engine.routing import Routing
from ktbench.engine.training.products import PackedProducts
from ktbench.engine.weight_plan import Packing
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import Precision

# How long a thread of the host role looks for the next call before it sleeps: longer than attention takes.
_SPIN_US = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertExecutor:
    """Who runs experts: `concurrent` is a pool that works on while its caller does something else."""

    team: Team
    recorder: CallRecorder
    concurrent: bool = False


class FusedExperts(ExpertsBackend):
    """ExpertsBackend and store of one decoder layer: runs and gives back what was packed."""

    def __init__(self, packed: PackedExperts, form: ExpertsForm, layer: int, executor: ExpertExecutor) -> None:
        self.kernels: dict[str, Any] = {"avx512": True}
        self.form, self.packed = form, packed
        self._layer, self._executor = layer, executor
        self._moe = MoE(packed, executor.team, tag=layer)
        self._products = ExpertProducts(packed, executor.team, tag=layer)
        self._earlier: Counter[str] = Counter()

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        self._executor.recorder.do(self._prepare(hidden, routing, output).forward, hidden, routing, output)
        return output

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Submits the same; on shared cores it is done here, as no thread is free to run it meanwhile."""
        if not self._executor.concurrent:
            return super().start(hidden, routing)
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        prepared = self._prepare(hidden, routing, output)
        self._executor.recorder.do(prepared.submit, hidden, routing, output)

        def fetch() -> Tensor:
            self._executor.recorder.wait(prepared.wait, self._layer)
            return output

        return fetch

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor) -> Callable[[], Tensor]:
        """The call on `hidden` [T, H] that writes `output` [T, H] and gives it back, both bf16 and contiguous.

        Nothing but the operator's work is left to do in it; the kernels are those chosen when it is bound.
        """
        forward = self._prepare(hidden, routing, output).forward

        def call() -> Tensor:
            forward()
            return output

        return call

    def _prepare(self, hidden: Tensor, routing: Routing, output: Tensor) -> Prepared:
        return self._moe.prepare(*_arrays(hidden, routing, output), **self.kernels)

    @property
    def settings(self) -> object:
        """What a prepared call keeps using, whatever is chosen later."""
        return self.kernels, self._executor.team

    def host_call(self, hidden: Tensor, routing: Routing, output: Tensor) -> HostCall:
        """The call as C functions, on memory of the host: `hidden` and `output` [T, H] bf16 and contiguous."""
        return self._moe.host_call(*_arrays(hidden, routing, output), **self.kernels)

    @staticmethod
    def hand_over(immediate: HostCall, deferred: HostCall | None, previous: HostCall | None) -> HandOver:
        """Such calls as what a layer hands to the host: see `HandOver`."""
        return HandOver(immediate, deferred, previous)

    def move_to(self, executor: ExpertExecutor) -> None:
        """Run on other threads from now on; counts continue."""
        self._earlier = self.counters()
        self._executor, self._moe = executor, MoE(self.packed, executor.team, tag=self._layer)
        self._products = ExpertProducts(self.packed, executor.team, tag=self._layer)

    def also_on(self, executor: ExpertExecutor) -> FusedExperts:
        """The same weights, run by others as well."""
        return FusedExperts(self.packed, self.form, self._layer, executor)

    def products(self) -> PackedProducts:
        """Products with the same weights, one matrix at a time and transposed, on the same threads and kernels."""
        return PackedProducts(self._products, self.packed, self.kernels)

    @property
    def memory(self) -> Tensor:
        """The packed experts as they lie, uint8 [E, bytes], to be read only."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch has no tensors that are read-only
            return torch.from_numpy(self.packed.memory())

    def counters(self) -> Counter[str]:
        """Cumulative counts of this layer's kernels."""
        total = Counter(self._earlier)
        for one in (self._moe, self._products):  # where adding Counters would drop those that stand at 0
            total.update(one.counters())
        return total

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as they are stored, float32."""
        gate, up, down = (torch.from_numpy(matrix) for matrix in self.packed.read_expert(i, self._executor.team))
        return ExpertMatrices(gate=gate, up=up, down=down, biases=self._biases(i), glu=self.form.glu)

    def in_float32(self, i: int) -> ExpertFunction:
        """See `ExpertsBackend`: on the packed weights as they lie, by loops of their own (kernels/moe/widened.cpp)."""
        biases, team = self._biases(i) or (None, None, None), self._executor.team

        def product(matrix: str, inputs: Tensor, bias: Tensor | None) -> Tensor:
            rows = self.packed.multiply_expert(i, matrix, inputs.contiguous().numpy(), team)
            return torch.from_numpy(rows) if bias is None else torch.from_numpy(rows) + bias

        def function(hidden: Tensor) -> Tensor:
            gate, up = product("gate", hidden, biases[0]), product("up", hidden, biases[1])
            return product("down", self.form.glu(gate, up), biases[2])

        return function

    def _biases(self, i: int) -> Biases | None:
        return Biases(*map(torch.from_numpy, self.packed.read_biases(i))) if self.form.biases else None


class FusedHost:
    """The fused layers of a model, packed alike, and the threads that they share.

    On shared cores those are PyTorch's own; `concurrent` gives the host role a pool, with a thread on each of `cpus`.
    """

    def __init__(
        self,
        cpus: tuple[int, ...],
        packing: Packing,
        recorder: CallRecorder,
        *,
        concurrent: bool = False,
        files: PackedFiles | None = None,
    ) -> None:
        self.packing, self.concurrent, self._files = packing, concurrent, files
        self._cpus, self._recorder = cpus, recorder
        self._executor = self._new_executor()
        self._layers: list[FusedExperts] = []
        self._at_device: dict[tuple[FusedExperts, int], FusedExperts] = {}

    @property
    def team(self) -> Team:
        """The threads of the host role."""
        return self._executor.team

    @property
    def precisions(self) -> tuple[tuple[Precision, Precision], ...]:
        """Those of gate and up, and of down, in every layer; a file may mix them."""
        return tuple((layer.packed.precision, layer.packed.down_precision) for layer in self._layers)  # type: ignore[misc]

    def _new_executor(self) -> ExpertExecutor:
        if not self.concurrent:
            return ExpertExecutor(team=OpenMPTeam(len(self._cpus)), recorder=self._recorder)
        with reach(self._cpus):
            pool = ThreadPool(list(self._cpus), _SPIN_US, own=True)
        return ExpertExecutor(team=pool, recorder=self._recorder, concurrent=True)

    def pack(
        self, store: PackableStore, form: ExpertsForm, layer: int = 0, precision: Precision | None = None
    ) -> FusedExperts:
        """Packs the experts of one decoder layer, one after the other: `store` need not hold more than one.

        `precision` is one of the layer's own, None that of all.
        Those that the `files` of the host have are mapped, and `store` is not asked for them.
        """
        if self._files is None:
            packed = self._pack(store, form, precision)
        else:
            packed = self._files.take(f"layer-{layer:03}", PackedExperts, lambda: self._pack(store, form, precision))
        self._layers.append(FusedExperts(packed, form, layer, self._executor))
        return self._layers[-1]

    def _pack(self, store: PackableStore, form: ExpertsForm, precision: Precision | None) -> PackedExperts:
        expert = store(0)
        packing = self.packing if precision is None else replace(self.packing, precision=precision)
        formats = asdict(packing) | _stored_as(expert)
        packed = PackedExperts(form.experts, form.hidden, form.ffn, biases=form.biases, **formats, **asdict(form.glu))
        _write(packed, 0, expert, self.team)
        for i in range(1, form.experts):
            _write(packed, i, store(i), self.team)
        return packed

    def require(self, spec: RunSpec) -> None:
        """Raises Unsupported for +n without domains or threads for it, ValueError where other weights are packed."""
        if spec.engine.numa and self.packing.domains < 2:
            raise Unsupported("+n: the cores lie on one NUMA node, engine.domains=2 splits them into logical domains")
        if spec.engine.numa and self.team.threads < self.packing.domains:
            raise Unsupported(f"+n: {self.packing.domains} domains need a thread each, there are {self.team.threads}")
        for name, requested, packed in (
            ("precision", spec.precision, self.packing.precision),
            ("engine.domains", spec.engine.domains or self.packing.domains, self.packing.domains),
        ):
            if requested != packed:
                raise ValueError(f"{name}={requested} requested, the experts are packed with {packed}")

    def choose(self, engine: EngineSpec) -> None:
        """Kernels of all layers from the next call on."""
        kernels: dict[str, Any] = {feature.name: value for feature, value in engine.values if feature.kernel_argument}
        if engine.amx_min_tokens != "auto":  # which the kernels know
            kernels["amx_min_tokens"] = engine.amx_min_tokens
        for layer in (*self._layers, *self._at_device.values()):
            layer.kernels = kernels

    def notes(self, engine: EngineSpec) -> tuple[str, ...]:
        """What the evidence of a feature does not prove on these threads."""
        if not (engine.fused and engine.dynamic and self.team.threads == 1):
            return ()
        return (
            f"{engine.label}: +d on one thread takes its tasks from a queue that it shares with none: that shows "
            "what the queue costs, not what balancing gains",
        )

    def run_on(self, cpus: tuple[int, ...]) -> None:
        """Run on these from now on."""
        if cpus != self._cpus:
            self._cpus = cpus
            self._executor = self._new_executor()
            for layer in self._layers:
                layer.move_to(self._executor)

    def at_device(self, experts: FusedExperts, threads: int) -> FusedExperts:
        """The same experts for the device role on CPU cores, run by PyTorch's threads."""
        key = experts, threads
        if key not in self._at_device:
            self._at_device[key] = experts.also_on(ExpertExecutor(team=OpenMPTeam(threads), recorder=self._recorder))
        return self._at_device[key]

    def counters(self) -> Counter[str]:
        """Cumulative counts of the kernels, summed over layers."""
        total: Counter[str] = Counter()
        for layer in (*self._layers, *self._at_device.values()):
            total.update(layer.counters())
        return total


def _stored_as(expert: ExpertMatrices | ExpertBlocks) -> dict[str, Precision]:
    """The precisions of experts that are packed as a file has them."""
    if isinstance(expert, ExpertMatrices):
        return {}
    return {"precision": expert.precision, "down_precision": expert.down_precision}


def _write(packed: PackedExperts, i: int, expert: ExpertMatrices | ExpertBlocks, team: Team) -> None:
    """Rows may have gaps between them, elements of a row may not: what is held transposed is copied here."""
    parts = {} if expert.biases is None else expert.biases._asdict()
    biases = {f"{name}_bias": bias.detach().float().contiguous().numpy() for name, bias in parts.items()}
    if isinstance(expert, ExpertBlocks):
        packed.write_expert_blocks(i, expert.gate, expert.up, expert.down, team, **biases)
    else:
        gate, up, down = (as_numpy(matrix.contiguous()) for matrix in (expert.gate, expert.up, expert.down))
        packed.write_expert(i, gate, up, down, team, **biases)


def _arrays(hidden: Tensor, routing: Routing, output: Tensor) -> tuple[NDArray[Any], ...]:
    return as_numpy(hidden), routing.ids.numpy(), routing.gates.numpy(), as_numpy(output)
