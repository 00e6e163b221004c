"""The operators that a rule may name, and which modules each can stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ktbench.spec.inject import Argument
from ktbench.spec.weights import FORMATS

if TYPE_CHECKING:
    from torch import nn


_LEAST_FEATURES = 16  # rows of a strip of the packed layout
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_QK_NORMS = ("q_norm", "k_norm")
_PRECISION: Mapping[str, Sequence[Argument]] = {
    "precision": [name for name, one in FORMATS.items() if one.from_numbers],
}
# Arguments of KTransformers' rules, and what does here what they do there.
_DEVICE = "modules have no device of their own: engine.device is that of all but the routed experts, engine.placement"
_KERNELS = "kernels are features: +a, +v and +m of experts, +l of the rest on CPU cores"
ELSEWHERE: Mapping[str, str] = {
    "device": f"{_DEVICE} puts experts there",
    "out_device": f"{_DEVICE} puts experts there",
    "generate_device": f"{_DEVICE} puts experts there",
    "prefill_device": f"{_DEVICE} and engine.device_prefill_tokens put experts there",
    "generate_op": _KERNELS,
    "prefill_op": _KERNELS,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorKind:
    """One row: an operator by the name that rules give it.

    `fits` gives why the operator cannot take a module's place, "" where it can. `arguments` are the keys that a rule's
    `args` may have, each with the values that are allowed. An operator that `wraps` keeps the module it takes the place
    of, so modules inside it may be replaced too. Kernels `in_bf16` leave alone what a family keeps in float32.
    """

    name: str
    summary: str
    fits: Callable[[nn.Module], str]
    arguments: Mapping[str, Sequence[Argument]] = field(default_factory=dict)
    wraps: bool = False
    in_bf16: bool = False


def fits_anything(_module: nn.Module) -> str:
    """Every module can be wrapped."""
    return ""


def fits_experts(module: nn.Module) -> str:
    """Routed experts of one layer as one module, of a form that `read_form` supports."""
    from ktbench.engine.forms import read_form

    return _refusal(read_form, module).removeprefix(f"{type(module).__name__}: ")


def _refusal(read: Callable[[nn.Module], object], module: nn.Module) -> str:
    """Why `read` raises ValueError for a module, "" where it does not."""
    try:
        read(module)
    except ValueError as error:
        return str(error)
    return ""


def fits_linear(module: nn.Module) -> str:
    """A linear layer, wide enough to be packed."""
    from torch import nn

    if not isinstance(module, nn.Linear):
        return "is no torch.nn.Linear"
    if min(module.in_features, module.out_features) < _LEAST_FEATURES:
        size = f"{module.in_features} inputs and {module.out_features} outputs"
        return f"has {size}, each must be at least {_LEAST_FEATURES}"
    return ""


def fits_rms_norm(module: nn.Module) -> str:
    """An RMS norm of the form that `read_norm` supports."""
    from ktbench.engine.inject.forms import read_norm

    return _refusal(read_norm, module)


def fits_router(module: nn.Module) -> str:
    """A router of the form that `read_router` supports."""
    from ktbench.engine.inject.forms import read_router

    return _refusal(read_router, module)


def fits_attention(module: nn.Module) -> str:
    """Softmax attention over heads of equal width, with or without norms of queries and keys."""
    return next(_attention_differs(module), "")


def fits_latent_attention(module: nn.Module) -> str:
    """Latent attention on all that is cached, expanded by one method from latents (DeepSeek-V2, section 2.1)."""
    return next(_latent_attention_differs(module), "")


def _latent_attention_differs(module: nn.Module) -> Iterator[str]:
    children, sizes = dict(module.named_children()), ("num_heads", "v_head_dim", "qk_nope_head_dim")
    if "kv_b_proj" not in children or not callable(getattr(module, "expand_kv", None)):
        yield "has no kv_b_proj and expand_kv"
        return
    if "indexer" in children:
        yield "has an indexer, which leaves out what is cached"
    heads, values, keys = (getattr(module, name, None) for name in sizes)
    if not (isinstance(heads, int) and isinstance(values, int) and isinstance(keys, int)):
        yield f"has no {', '.join(sizes)}"
    elif getattr(children["kv_b_proj"], "out_features", None) != heads * (keys + values):
        yield f"has a kv_b_proj with other outputs than {heads} heads of {keys} and {values} have"


def fits_rotary(module: nn.Module) -> str:
    """One rotary embedding for all layers, called with (hidden, positions)."""
    taken = list(inspect.signature(type(module).forward).parameters)[1:]
    return "" if len(taken) == 2 else f"is called with ({', '.join(taken)}), not with (hidden, positions)"


def _attention_differs(module: nn.Module) -> Iterator[str]:
    children = dict(module.named_children())
    if missing := [name for name in _PROJECTIONS if name not in children]:
        yield f"has no {', '.join(missing)}"
        return
    if others := [name for name in children if name not in _PROJECTIONS + _QK_NORMS]:
        yield f"has {', '.join(others)} besides its projections"
    if own := [name for name, _ in module.named_parameters(recurse=False)]:
        yield f"has parameters of its own: {', '.join(own)}"
    yield from _heads_differ(module, children)


def _heads_differ(module: nn.Module, children: dict[str, nn.Module]) -> Iterator[str]:
    """A projection that gates its output as well, say, has more rows than its heads."""
    config, width = getattr(module, "config", None), getattr(module, "head_dim", None)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(width, int) or not isinstance(heads, int):
        yield "has no head_dim, or no config with num_attention_heads"
        return
    groups = getattr(config, "num_key_value_heads", None) or heads
    expected = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
    for name, count in expected.items():
        rows = getattr(children[name], "out_features", None)
        if rows != count * width:
            yield f"has a {name} with {rows} outputs, {count} heads of {width} have {count * width}"


OPERATORS: dict[str, OperatorKind] = {
    kind.name: kind
    for kind in (
        OperatorKind(
            name="experts",
            summary="routed experts in the host role, as the features +v, +m, +d and +n say",
            fits=fits_experts,
            arguments=_PRECISION,
        ),
        OperatorKind(
            name="linear",
            summary="a linear layer of the device role, packed in device_precision",
            fits=fits_linear,
            arguments=_PRECISION,
            in_bf16=True,
        ),
        OperatorKind(
            name="rms_norm",
            summary="an RMS norm of the device role as one call",
            fits=fits_rms_norm,
            in_bf16=True,
        ),
        OperatorKind(
            name="attention",
            summary="attention of plain heads, in a decode step a few calls on a cache of fixed size",
            fits=fits_attention,
            wraps=True,
        ),
        OperatorKind(
            name="latent_attention",
            summary="latent attention, in a decode step on the latents themselves, with absorbed projections",
            fits=fits_latent_attention,
            wraps=True,
        ),
        OperatorKind(
            name="rotary",
            summary="cosines and sines of positions, in a decode step looked up in a table",
            fits=fits_rotary,
        ),
        OperatorKind(
            name="router",
            summary="a softmax router, in a decode step chosen in one call",
            fits=fits_router,
        ),
        OperatorKind(
            name="shared",
            summary="a shared expert, run by the device role while the host role works",
            fits=fits_anything,
            wraps=True,
        ),
    )
}
