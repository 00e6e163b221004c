"""How families of Transformers hold their routed experts: matrices, gated activation, layout and position.

The form is read from the module and verified. Letters: T tokens, E experts, H hidden width, I expert width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers import PreTrainedModel

from ktbench.engine.decode.timeline import layer_of
from ktbench.spec.weights import Precision

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Glu:
    """h = act(g) · (u + offset) with g = min(gate, limit) and u = clamp(up, -limit, limit).

    `silu` is g · σ(alpha · g); `gelu_tanh` (Hendrycks and Gimpel, 2016) has no alpha. No `limit` clamps nothing.
    """

    activation: Activation = "silu"
    alpha: float = 1.0
    limit: float | None = None
    offset: float = 0.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """[T, I] of `gate` and `up` [T, I], in their type."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.activation == "gelu_tanh":
            return gelu(gate, approximate="tanh") * (up + self.offset)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.offset)


class Biases(NamedTuple):
    """Biases of one expert: `gate` and `up` [I], `down` [H]."""

    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertMatrices:
    """One expert: `gate` and `up` [I, H], `down` [H, I]; `biases` where the family has them."""

    gate: Tensor
    up: Tensor
    down: Tensor
    biases: Biases | None = None
    glu: Glu = Glu()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Matrices, then biases, each as gate, up and down."""
        return (self.gate, self.up, self.down, *(self.biases or ()))

    def __call__(self, hidden: Tensor) -> Tensor:
        """[T, H] float32 of `hidden` [T, H] float32."""
        gate_bias, up_bias, down_bias = (None, None, None) if self.biases is None else map(Tensor.float, self.biases)
        gate = _float32_linear(hidden, self.gate, gate_bias)
        up = _float32_linear(hidden, self.up, up_bias)
        return _float32_linear(self.glu(gate, up), self.down, down_bias)


# Numbers that are widened at a time: in float32 they stay in a core's cache until they are used.
_WIDENED = 1 << 18


def _float32_linear(inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """[T, N] float32 of `inputs` [T, K] float32 and `matrix` [N, K] of any floating type."""
    if matrix.dtype == torch.float32:
        return linear(inputs, matrix, bias)
    rows = max(1, _WIDENED // matrix.shape[1])
    output = torch.cat([linear(inputs, part.float()) for part in torch.split(matrix, rows)], dim=1)
    return output if bias is None else output + bias


# Rows of weights as blocks: [N, K / weights of a block · bytes of a block].
Blocks = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertBlocks:
    """One expert as a file has it, and the precisions that it is packed in: matrices of `ExpertMatrices` as blocks.

    Matrices in bf16 are their bits, uint16.
    """

    gate: Blocks
    up: Blocks
    down: Blocks
    precision: Precision
    down_precision: Precision
    biases: Biases | None = None


class LinearRows(NamedTuple):
    """The rows of a linear layer as blocks of a precision, once `read`."""

    read: Callable[[], Blocks]
    precision: Precision


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """The memory of a bf16 tensor as uint16: numpy has no bf16."""
    return tensor.detach().view(torch.uint16).numpy()


# What an expert makes of hidden [T, H] float32 in float32 arithmetic; gives that of expert i.
ExpertFunction = Callable[[Tensor], Tensor]
ExpertFunctions = Callable[[int], ExpertFunction]
# Gives the matrices of expert i, which are such a function; to be packed, its blocks do as well.
ExpertStore = Callable[[int], ExpertMatrices]
PackableStore = Callable[[int], ExpertMatrices | ExpertBlocks]
# Gives the rows of a linear layer in a precision that it may be packed in; None where it is stored in another.
LinearBlocks = Callable[[nn.Module], LinearRows | None]


_CALL = 3  # (hidden, ids, weights)
_MATRICES = ("gate_up_proj", "down_proj")
_BIASES = ("gate_up_proj_bias", "down_proj_bias")
_PROBE_SIDE = 33
_TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsForm:
    """The experts of one layer as a family holds them.

    `gate_up_proj` is [E, 2I, H] and `down_proj` [E, H, I], with the last two the other way round where `transposed`.
    Gate and up are its halves, or alternate row by row where `interleaved`.
    """

    experts: int
    hidden: int
    ffn: int
    transposed: bool = False
    interleaved: bool = False
    biases: bool = False
    glu: Glu = field(default_factory=Glu)

    @property
    def gate_up_shape(self) -> tuple[int, int, int]:
        """That of `gate_up_proj`."""
        rows, columns = 2 * self.ffn, self.hidden
        return (self.experts, columns, rows) if self.transposed else (self.experts, rows, columns)

    def matrices(self, module: nn.Module, i: int) -> ExpertMatrices:
        """Views of the weights of expert `i` of a module of this form."""
        return self.split({name: parameter[i] for name, parameter in module.named_parameters(recurse=False)})

    def split(self, parameters: dict[str, Tensor]) -> ExpertMatrices:
        """Views of one expert's part of the parameters, by their names in the module."""
        gate_up, down = parameters["gate_up_proj"], parameters["down_proj"]
        if self.transposed:
            gate_up, down = gate_up.T, down.T
        gate, up = self.halves(gate_up)
        biases = None
        if self.biases:
            biases = Biases(*self.halves(parameters["gate_up_proj_bias"]), parameters["down_proj_bias"])
        return ExpertMatrices(gate=gate, up=up, down=down, biases=biases, glu=self.glu)

    def halves(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Those of gate and those of up, views of the rows of one expert's `gate_up_proj`."""
        return (rows[::2], rows[1::2]) if self.interleaved else (rows[: self.ffn], rows[self.ffn :])


def read_form(module: nn.Module) -> ExpertsForm:
    """The form of an `*Experts` module, which may be on `meta`.

    What Transformers declares (`use_experts_implementation`) is taken from the module; its activation is evaluated on a
    probe and must be one of `Glu`. Raises ValueError naming the class and what differs.
    """
    if differs := next(_differences(module), ""):
        raise ValueError(f"{type(module).__name__}: {differs}")
    down = module.get_parameter("down_proj")
    transposed = bool(getattr(module, "is_transposed", None))
    interleaved = getattr(module, "is_concatenated", None) is False
    form = ExpertsForm(
        experts=len(down),
        hidden=down.shape[2 if transposed else 1],
        ffn=down.shape[1 if transposed else 2],
        transposed=transposed,
        interleaved=interleaved,
        biases=hasattr(module, _BIASES[0]),
        glu=_glu(module, interleaved),
    )
    held = tuple(module.get_parameter("gate_up_proj").shape)
    if held != form.gate_up_shape:
        raise ValueError(f"{type(module).__name__}: gate_up_proj is {held}, down_proj needs {form.gate_up_shape}")
    return form


def takes_routing(module: nn.Module) -> bool:
    """Whether a module is called as routed experts are: (hidden, ids, weights)."""
    return len(_arguments(module)) == _CALL


def _arguments(module: nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)[1:]


def _differences(module: nn.Module) -> Iterator[str]:
    """What keeps a module from being experts of `ExpertsForm`, before its shapes and its activation are looked at."""
    if not takes_routing(module):
        yield f"is called with ({', '.join(_arguments(module))}), not with (hidden, ids, weights)"
    if getattr(module, "has_gate", None) is False:
        yield "has no gate: up and down projection only"
    if getattr(module, "has_post_expert_norm", None):
        yield "norms the output of each expert"
    for name in _MATRICES:
        parameter = getattr(module, name, None)
        if not isinstance(parameter, nn.Parameter) or parameter.dim() != 3:
            yield f"has no {name} of three dimensions"
            return
    idle = len(module.get_parameter("gate_up_proj")) - len(module.get_parameter("down_proj"))
    if idle > 0:
        yield f"has {idle} experts that pass their input on"
    if unknown := sorted({name for name, _ in module.named_parameters()} - {*_MATRICES, *_BIASES}):
        yield f"has parameters of unknown meaning: {', '.join(unknown)}"


def _glu(module: nn.Module, interleaved: bool) -> Glu:
    """The first candidate that agrees with the module's own activation on the probe."""
    limit = _number(module, "limit", "swiglu_limit")
    limit = None if limit is None or math.isinf(limit) else limit
    alpha = _number(module, "alpha", "swiglu_alpha")
    candidates = [Glu(alpha=alpha or 1.0, limit=limit, offset=offset) for offset in (0.0, 1.0)]
    candidates.append(Glu(activation="gelu_tanh", limit=limit))
    within = _agreeing(module, candidates, interleaved, 0.9 * (limit or 8.0))
    beyond = _agreeing(module, within, interleaved, 3.0 * (limit or 8.0))
    if beyond:
        return beyond[0]
    name = type(module).__name__
    if within:
        raise ValueError(f"{name}: clamps its activation otherwise than gate and up to limit={limit}")
    raise ValueError(f"{name}: activates by {_activation_name(module)}, which is neither silu nor gelu_tanh times up")


def _number(module: nn.Module, *names: str) -> float | None:
    found = (getattr(module, name) for name in names if getattr(module, name, None) is not None)
    number = next(found, None)
    return None if number is None else float(number)


def _agreeing(module: nn.Module, candidates: list[Glu], interleaved: bool, reach: float) -> list[Glu]:
    """Those that give what the module gives for gate and up from -reach to reach."""
    line = torch.linspace(-reach, reach, _PROBE_SIDE, device="cpu")
    gate, up = (side.flatten()[None] for side in torch.meshgrid(line, line, indexing="ij"))
    own = _own_activation(module, gate, up, interleaved)
    return [
        candidate
        for candidate in candidates
        if torch.allclose(candidate(gate, up), own, rtol=_TOLERANCE, atol=_TOLERANCE)
    ]


def _own_activation(module: Any, gate: Tensor, up: Tensor, interleaved: bool) -> Tensor:
    """What the module itself makes of them; without `_apply_gate` it is act_fn(gate) · up."""
    if hasattr(module, "_apply_gate"):
        both = torch.stack([gate, up], dim=-1).flatten(-2) if interleaved else torch.cat([gate, up], dim=-1)
        own: Tensor = module._apply_gate(both)
    else:
        own = module.act_fn(gate) * up
    return own


def _activation_name(module: nn.Module) -> str:
    activation = getattr(module, "act_fn", None)
    return getattr(activation, "__name__", None) or type(activation).__name__


_CLASS = "Experts"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsPosition:
    """Where an operator stands: in decoder layer `layer`, as MoE layer `number`, both counted from 0."""

    layer: int
    number: int
    is_last: bool


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the routed experts of one layer, as every MoE family in Transformers 5 has one."""
    return type(module).__name__.endswith(_CLASS) and takes_routing(module)


def expert_positions(network: PreTrainedModel) -> list[tuple[str, ExpertsPosition]]:
    """Name and position of every experts module: `model.layers.3.mlp.experts` is in decoder layer 3.

    Raises ValueError naming the first class of experts that is not of an `ExpertsForm`, or the network where it has no
    experts at all.
    """
    names = list(_checked_names(network))
    return [
        (name, ExpertsPosition(layer=layer_of(name) or 0, number=number, is_last=name == names[-1]))
        for number, name in enumerate(names)
    ]


def _checked_names(network: PreTrainedModel) -> Iterator[str]:
    found = {name: module for name, module in network.named_modules() if type(module).__name__.endswith(_CLASS)}
    # Shared experts may be a module of such a name too, but never the only one.
    routed = {name: module for name, module in found.items() if takes_routing(module)} or found
    if not routed:
        raise ValueError(f"{type(network).__name__}: has no module whose class is named ...{_CLASS}")
    for name, module in routed.items():
        read_form(module)
        yield name
