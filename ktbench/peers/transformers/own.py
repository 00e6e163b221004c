"""An experts operator of the user's own in plain Transformers: the class `Experts` of a file."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location

import torch
from torch import Tensor, nn

from ktbench.engine.experts import OriginalExperts
from ktbench.engine.protocol import Unsupported
from ktbench.spec.peers import IMPLEMENTATION_OWN, OPERATOR_CLASS, PeerSpec

_MADE, _FORWARD, _GUARDED = "_ktbench_own", "forward", "_ktbench_guarded"


def set_experts_implementation(experts: OriginalExperts, peer: PeerSpec) -> None:
    """Make a family's experts module run the operator in the peer's file, or its own implementation without one.

    The operator is constructed once for each module and content of the file. Its weights are those of the module, which
    the reference and other rows read as well: from then on a write to them ends the process. Raises Unsupported with
    the file's error.
    """
    kept = experts.module.__dict__  # not attributes: the module would register the operator as its submodule
    kept.pop(_FORWARD, None)
    if peer.implementation != IMPLEMENTATION_OWN or peer.operator is None:
        return
    if kept.get(_MADE, ("", None))[0] != peer.operator_id:
        kept[_MADE] = peer.operator_id, _make(peer.operator, experts.module)
    kept[_FORWARD] = kept[_MADE][1].__call__


def experts_words(peer: PeerSpec) -> str:
    """Which experts run, for notes and reasons."""
    if peer.implementation == IMPLEMENTATION_OWN:
        return f"peer.operator={peer.operator} ({peer.operator_id})"
    return f"experts_implementation={peer.implementation}"


def _make(file: str, module: nn.Module) -> nn.Module:
    lent = _lend(module)
    try:
        operator = _class_of(file)(lent)
    except Exception as error:  # whatever the user's code raises
        raise Unsupported(f"peer.operator={file}: {type(error).__name__}: {error}") from None
    if not isinstance(operator, nn.Module):
        raise Unsupported(f"peer.operator={file}: {OPERATOR_CLASS} must be a torch.nn.Module")
    return operator.eval()


def _lend(module: nn.Module) -> nn.Module:
    """A module with the same weights: an operator may replace them, but not write to them."""
    if not module.__dict__.get(_GUARDED):
        for parameter in module.parameters(recurse=False):
            parameter.data = _guard(parameter.data)
        module.__dict__[_GUARDED] = True
    lent = copy.copy(module)
    held = module.named_parameters(recurse=False)
    lent._parameters = {name: nn.Parameter(original.data, requires_grad=False) for name, original in held}
    lent.__dict__ = {name: value for name, value in lent.__dict__.items() if name not in (_MADE, _FORWARD, _GUARDED)}
    return lent


def _guard(numbers: Tensor) -> Tensor:
    """The same values on separate read-only pages. Raises Unsupported without the extension."""
    try:
        from ktbench import _kernels
    except ImportError as error:
        raise Unsupported(f"peer.operator needs ktbench's kernels, which guard the weights: {error}") from None
    nbytes = -(-max(1, numbers.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held = torch.frombuffer(pages, dtype=torch.uint8)
    mine = held[: numbers.nbytes].view(numbers.dtype).view(numbers.shape).copy_(numbers)
    _kernels.guard_pages(held.data_ptr(), nbytes)
    return mine


def _class_of(file: str) -> Callable[[nn.Module], nn.Module]:
    module_spec = spec_from_file_location("ktbench_own_operator", file)
    if module_spec is None or module_spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    loaded = module_from_spec(module_spec)
    module_spec.loader.exec_module(loaded)
    make: Callable[[nn.Module], nn.Module] = getattr(loaded, OPERATOR_CLASS)
    return make
