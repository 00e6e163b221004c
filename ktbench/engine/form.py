"""How a family of Transformers holds its routed experts and activates them, read from the module and verified.

Letters: E experts, H hidden width, I expert width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ktbench.engine.matrices import ExpertMatrices, Glu

_CALL = 3  # (hidden, ids, weights)
_MATRICES = ("gate_up_proj", "down_proj")
_BIASES = ("gate_up_proj_bias", "down_proj_bias")
_PROBE_SIDE = 33
_TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsForm:
    """The experts of one layer as a family holds them.

    `gate_up_proj` is [E, 2I, H] and `down_proj` [E, H, I], with the last two the other way round where `transposed`.
    Gate and up are its halves, or take turns where `interleaved`.
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
        gate, up = self._halves(gate_up.T if self.transposed else gate_up)
        down = down.T if self.transposed else down
        if not self.biases:
            return ExpertMatrices(gate=gate, up=up, down=down, glu=self.glu)
        gate_bias, up_bias = self._halves(parameters["gate_up_proj_bias"])
        down_bias = parameters["down_proj_bias"]
        return ExpertMatrices(
            gate=gate, up=up, down=down, gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias, glu=self.glu
        )

    def _halves(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return (rows[::2], rows[1::2]) if self.interleaved else (rows[: self.ffn], rows[self.ffn :])


def read_form(module: nn.Module) -> ExpertsForm:
    """The form of an `*Experts` module, which may be on `meta`.

    What Transformers declares (`use_experts_implementation`) is taken from the module; its activation is evaluated on a
    probe and must be one of `Glu`. Raises ValueError naming the class and what differs.
    """
    if differs := next(_differences(module), ""):
        raise ValueError(f"{type(module).__name__}: {differs}")
    down = module.get_parameter("down_proj")
    transposed, interleaved = bool(_declared(module, "is_transposed")), _declared(module, "is_concatenated") is False
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
        raise ValueError(f"{type(module).__name__}: gate_up_proj is {held}, down_proj asks for {form.gate_up_shape}")
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
    if _declared(module, "has_gate") is False:
        yield "has no gate: up and down projection only"
    if _declared(module, "has_post_expert_norm"):
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


def _declared(module: nn.Module, name: str) -> Any:
    """An attribute of the decorator, None where a class goes without it."""
    return getattr(module, name, None)


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
    return [one for one in candidates if torch.allclose(one(gate, up), own, rtol=_TOLERANCE, atol=_TOLERANCE)]


def _own_activation(module: nn.Module, gate: Tensor, up: Tensor, interleaved: bool) -> Tensor:
    """What the module itself makes of them; without `_apply_gate` it is act_fn(gate) · up."""
    whole: Any = module
    if not hasattr(module, "_apply_gate"):
        plain: Tensor = whole.act_fn(gate) * up
        return plain
    both = torch.stack([gate, up], dim=-1).flatten(-2) if interleaved else torch.cat([gate, up], dim=-1)
    own: Tensor = whole._apply_gate(both)
    return own


def _activation_name(module: nn.Module) -> str:
    activation = getattr(module, "act_fn", None)
    return getattr(activation, "__name__", None) or type(activation).__name__
