"""The operators that a rule may name, and which modules each can stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ktbench.engine.inject import fits

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorKind:
    """One row: an operator by the name that rules give it.

    `fits` says why the operator cannot take a module's place, "" where it can. `arguments` are the keys that a rule's
    `args` may have. An operator that `wraps` keeps the module it takes the place of, so modules inside it may be
    replaced too.
    """

    name: str
    summary: str
    fits: Callable[[nn.Module], str]
    arguments: tuple[str, ...] = ()
    wraps: bool = False


OPERATORS: dict[str, OperatorKind] = {
    kind.name: kind
    for kind in (
        OperatorKind(
            name="experts",
            summary="routed experts in the host role, as the features +v, +m, +d and +n say",
            fits=fits.experts,
        ),
        OperatorKind(
            name="linear",
            summary="a linear layer of the device role, packed in device_precision",
            fits=fits.linear,
        ),
        OperatorKind(
            name="rms_norm",
            summary="an RMS norm of the device role as one call",
            fits=fits.rms_norm,
        ),
        OperatorKind(
            name="attention",
            summary="attention of plain heads, in a decode step a few calls on a cache of fixed size",
            fits=fits.attention,
            wraps=True,
        ),
        OperatorKind(
            name="rotary",
            summary="cosines and sines of positions, in a decode step looked up in a table",
            fits=fits.rotary,
        ),
        OperatorKind(
            name="router",
            summary="a softmax router, in a decode step chosen in one call",
            fits=fits.router,
        ),
        OperatorKind(
            name="shared",
            summary="a shared expert, run by the device role while the host role works",
            fits=fits.anything,
            wraps=True,
        ),
    )
}
