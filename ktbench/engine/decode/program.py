"""Records what one step does to memory, then does it again without the Python code that decided it.

The counterpart of a CUDA graph (`ktbench.engine.cuda.graph`) for a device role on CPU cores: every tensor keeps its
memory, shapes and addresses are those of the recorded step, and what changes from step to step (token, position, cache)
changes in place. Operators make native calls, which PyTorch does not see, through a `CallRecorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ktbench.engine.decode.lazy import is_pending, resolve_lazy
from ktbench.engine.decode.timeline import ModuleWatch, Segment, Where, timed


class CallSink(Protocol):
    """Records calls that PyTorch does not see."""

    def note(self, call: Call, *memory: object) -> None:
        """A call that was made and is to be made again; `memory` is kept alive for it."""


class CallRecorder:
    """One for all operators of an engine. `waited_ns` is how long the device role has waited for the host so far."""

    def __init__(self) -> None:
        self.watch = ModuleWatch()
        self.sink: CallSink | None = None
        self.waited_ns = 0

    def do(self, call: Call, *memory: object) -> None:
        """Make a call that PyTorch does not see, on `memory` that it needs."""
        call()
        if self.sink is not None:
            self.sink.note(call, *memory)

    def wait(self, call: Call, layer: int) -> None:
        """The same for a call that waits for the host."""
        self.watch.enter(Where("wait", layer))
        self.do(partial(self._timed, call))
        self.watch.leave()

    def _timed(self, call: Call) -> None:
        began = perf_counter_ns()
        call()
        self.waited_ns += perf_counter_ns() - began


class StepRecording(Protocol):
    """One step, recorded once and again where it changes; `watch` follows the modules that run."""

    watch: ModuleWatch

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Record what `run` does, maybe several times; gives its result, which every replay writes anew.

        Raises NotRecordable with the reason.
        """

    def replay(self) -> None:
        """Do the step once more on whatever its inputs hold now."""

    def replay_timed(self) -> list[Segment]:
        """The same, with the times of its parts as far as they are known."""


class ProgramRecording:
    """Steps of a device role on CPU cores."""

    def __init__(self, network: nn.Module, recorder: CallRecorder, lower: Lower | None) -> None:
        self._network, self._recorder, self._lower, self.watch = network, recorder, lower, recorder.watch
        self._steps = StepRecorder(self.watch)

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        constants = [*self._network.parameters(), *self._network.buffers()]
        recorder = self._recorder.sink = StepRecorder(self.watch, constants, self._lower)
        try:
            with self.watch.on(self._network), recorder:
                result = run()
        finally:
            self._recorder.sink = None
        self._steps = recorder
        return result

    def replay(self) -> None:
        self._steps.replay()

    def replay_timed(self) -> list[Segment]:
        return self._steps.replay_timed()


Call = Callable[[], object]

_MEMORY_ONLY = {torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided, torch.ops.aten.new_empty}
# Their result is a number, or a shape, that Python would decide by: a replay could not decide anew.
_DECIDING = {
    torch.ops.aten.item,
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.is_nonzero,
    torch.ops.aten.equal,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
}


_COPIES = {torch.ops.aten._to_copy, torch.ops.aten.to, torch.ops.aten.clone, torch.ops.aten.contiguous}


class NotRecordable(Exception):
    """The step does something that a replay would not do again; the text is the reason."""


# Whether all tensors in a nest of arguments stay as they are in every replay.
IsConstant = Callable[[Any], bool]
# A better way to do an operation that was recorded with these arguments and this result; None where there is none.
Lower = Callable[[Any, tuple[Any, ...], dict[str, Any], Tensor, IsConstant], Call | None]


class StepRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations that run inside it, in order, and where; they are carried out as well. Replays them.

    What is computed from `constants` alone stays as it is. `lower` may give a faster way to do an operation.
    """

    def __init__(self, watch: ModuleWatch, constants: Iterable[Tensor] = (), lower: Lower | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch, self._lower = watch, lower
        self._constant = _storages(list(constants))
        self._calls: list[Call] = []
        self._positions: list[Where] = []
        self._kept: list[object] = []  # the memory that the calls read and write

    def replay(self) -> None:
        """Do the step once more on whatever its inputs hold now."""
        for call in self._calls:
            call()

    def replay_timed(self) -> list[Segment]:
        """The same, with the time of every stretch of calls that belong together."""
        return timed(zip(self._calls, self._positions, strict=True))

    def note(self, call: Call, *memory: object) -> None:
        """Record a call that PyTorch does not see and that was made already; `memory` is kept alive for it."""
        self._calls.append(call)
        self._positions.append(self._watch.here)
        self._kept.append(memory)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry out and record one operation. Raises NotRecordable for one whose result would steer Python."""
        named = dict(kwargs or {})
        if is_pending((args, named)) and not _is_view(func):
            with self:  # what is done to fetch them is part of the step
                args, named = resolve_lazy((args, named))
        if func.overloadpacket in _DECIDING or _selects_by_mask(func, args):
            raise NotRecordable(f"{func} gives a value that the model's own code depends on")
        result = func(*args, **named)
        self._kept.append((args, named, result))
        if func.overloadpacket not in _MEMORY_ONLY and not is_pending(result) and not _shares(result, args, func):
            self._record(func, args, named, result)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if _storages(_written(func, args, kwargs)) & self._constant:
            raise NotRecordable(f"{func} changes a parameter, a buffer, or what is computed from those alone")
        read = _storages((args, kwargs))
        if read and read <= self._constant:
            self._constant |= _storages([result])
            return
        lowered = None
        if self._lower is not None and isinstance(result, Tensor):
            lowered = self._lower(func, args, kwargs, result, self._is_constant)
        self.note(lowered or _again(func, args, kwargs, result))

    def _is_constant(self, content: Any) -> bool:
        return _storages(content) <= self._constant


def _selects_by_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """`x[mask]`: how many are selected depends on the mask."""
    return func is torch.ops.aten.index.Tensor and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


def _is_view(func: Any) -> bool:
    """By its schema: the result is the memory of an argument, which is not written."""
    returns = func._schema.returns
    aliases = [one.alias_info for one in returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in aliases)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an operation changes, by its schema."""
    given = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    written = (
        argument
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return [given[one.name] for one in written if one.name in given]


def _shares(result: Any, args: Any, func: Any) -> bool:
    """Whether nothing was computed: the result lies in memory that an argument has already."""
    if func._schema.is_mutable:
        return False
    outputs = _storages([result])
    return bool(outputs) and outputs <= _storages(args)


def _storages(content: Any) -> set[int]:
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(content) if isinstance(leaf, Tensor)}


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Call:
    """The same operation into the same memory."""
    if func._schema.is_mutable:
        return partial(func, *args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    if func.overloadpacket in _COPIES:
        return partial(torch.ops.aten.copy_.default, outputs[0], args[0])
    variant = _out_variant(func)
    if variant is None:
        return partial(_compute_and_copy, func, args, kwargs, outputs)
    overload, names = variant
    return partial(overload, *args, **kwargs, **dict(zip(names, outputs, strict=True)))


@cache
def _out_variant(func: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The overload that takes the same arguments and memory for the results, with the names of the latter."""
    expected = _signature(func._schema.arguments)
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = overload._schema.arguments
        outs = tuple(argument.name for argument in arguments if argument.is_out)
        if outs and _signature(argument for argument in arguments if not argument.is_out) == expected:
            return overload, outs
    return None


def _signature(arguments: Iterable[Any]) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in arguments]


def _compute_and_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> None:
    fresh = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
    for to, new in zip(outputs, fresh, strict=True):
        to.copy_(new)
