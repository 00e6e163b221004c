"""A device of CPU tensors: streams that work at once or on request, experts that a test can follow."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda.role import CudaRole
from ktbench.engine.cuda.stream import Pins, Streams
from ktbench.engine.decode.program import CallRecorder, StepRecorder
from ktbench.engine.decode.timeline import ModuleWatch
from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.routing import Routing
from tests.engine.cuda.async_device import await_word, set_word


class Pageable:
    """A runtime that pins nothing."""

    def pin(self, _address: int, _nbytes: int) -> bool:
        return False


def no_pins() -> Pins:
    """For devices whose host is themselves."""
    return Pins(Pageable())  # type: ignore[arg-type]


Compute = Callable[[Tensor, Routing], Tensor]
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call_at(function: int, data: int) -> None:
    """Call a C function by its address. That it is Python's after all is no recorder's business."""
    with _disable_current_modes():
        HostFunction(function)(data)


class Queue:
    """A stream that does nothing until `finish`; `put` is what it was given, in order."""

    def __init__(self) -> None:
        self.put: list[tuple[str, object]] = []
        self._work: list[Callable[[], object]] = []

    def fork(self) -> None:
        self.put.append(("fork", None))

    def join(self) -> None:
        self.put.append(("join", None))

    def copy(self, to: Tensor, source: Tensor) -> None:
        self.put.append(("copy", to))
        self._work.append(partial(to.copy_, source))

    def call(self, function: int, data: int) -> None:
        self.put.append(("call", function))
        self._work.append(partial(call_at, function, data))

    def write(self, word: int, value: int) -> None:
        self.put.append(("write", value))
        self._work.append(partial(set_word, word, value))

    def await_value(self, word: int, value: int) -> None:
        self.put.append(("await", value))
        self._work.append(partial(await_word, word, value))

    def done(self) -> bool:
        return not self._work

    def finish(self) -> None:
        work, self._work = self._work, []
        for each in work:
            each()


class _Recorded:
    """A graph whose stream is the program of a recorder."""

    def __init__(self) -> None:
        self.program = StepRecorder(ModuleWatch())

    def replay(self) -> None:
        self.program.replay()


class FakeMark:
    """When the device came to it, which it did at once."""

    def __init__(self) -> None:
        self.at_s = perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeMark) -> float:
        return 1e3 * (end.at_s - self.at_s)


class FakeDevice:
    """A stream that works at once, and captures into a program; `aside_count` counts side streams."""

    def __init__(self) -> None:
        self._recorder: StepRecorder | None = None
        self.aside_count = 0

    def fork(self) -> None:
        pass

    def join(self) -> None:
        pass

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source)

    def call(self, function: int, data: int) -> None:
        self._do(partial(call_at, function, data))

    def write(self, word: int, value: int) -> None:
        self._do(partial(set_word, word, value))

    def await_value(self, word: int, value: int) -> None:
        self._do(partial(await_word, word, value))

    def _do(self, work: Callable[[], None]) -> None:
        work()
        if self._recorder is not None:
            self._recorder.note(work)

    def finish(self) -> None:
        pass

    def done(self) -> bool:
        return True

    def mark(self) -> FakeMark:
        return FakeMark()

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.aside_count += 1
        yield

    @contextmanager
    def captured(self) -> Iterator[_Recorded]:
        graph = _Recorded()
        self._recorder = StepRecorder(ModuleWatch())
        try:
            with self._recorder:
                yield graph
            graph.program = self._recorder
        finally:
            self._recorder = None


def role_on(device: Any, recorder: CallRecorder) -> CudaRole:
    """The device role on CPU tensors, all of whose streams and captures are those of `device`."""
    streams = Streams(current=device, side=device, transfers=device)
    return CudaRole(recorder, torch.device("cpu"), streams, device, no_pins())


class FakeCall:
    """A call over its memory; submit reads the inputs, wait writes the output."""

    def __init__(
        self, hidden: Tensor, routing: Routing, output: Tensor, log: list[str], compute: Compute | None = None
    ) -> None:
        self._compute = compute or weighted_ids
        self.hidden, self._routing, self.output, self._log = hidden, routing, output, log
        self._result: Tensor | None = None
        self._error: Exception | None = None

    def submit(self) -> None:
        self._log.append("submit")
        if (self._routing.ids > 90).any():
            self._error = IndexError("no such expert")
        self._result = self._compute(self.hidden, self._routing)

    def wait(self) -> None:
        self._log.append("wait")
        assert self._result is not None
        self.output.copy_(self._result)
        self._result = None

    def check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class FakeHandOver:
    """Two C functions over the calls of a layer, as the extension's."""

    def __init__(self, due: FakeCall, late: FakeCall | None, before: FakeCall | None) -> None:
        self._due, self._late, self._before = due, late, before
        self._functions = HostFunction(self._submit), HostFunction(self._wait)
        self.submit, self.wait = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._functions)
        self.data = 0

    def _submit(self, _data: int | None) -> None:
        self._due.submit()
        if self._late is not None:
            self._late.submit()

    def _wait(self, _data: int | None) -> None:
        self._due.wait()
        if self._before is not None:
            self._before.wait()
            self._due.output.add_(self._before.output)


def weighted_ids(hidden: Tensor, routing: Routing) -> Tensor:
    """What the fake experts compute: expert i gives (i + 1) · hidden."""
    scale = (routing.gates * (routing.ids + 1)).sum(dim=1, keepdim=True)
    return (scale * hidden.float()).to(hidden.dtype)


class FakeExperts:
    """Experts on the host, in a format no device unpacks; `made` counts their calls, `log` says what ran."""

    packed = SimpleNamespace(precision="unknown", down_precision="unknown", domains=1)

    def __init__(self) -> None:
        self.settings: object = "first"
        self.log: list[str] = []
        self.made: list[FakeCall] = []
        self.handed: list[FakeHandOver] = []

    def host_call(self, hidden: Tensor, routing: Routing, output: Tensor) -> FakeCall:
        self.made.append(FakeCall(hidden, routing, output, self.log))
        return self.made[-1]

    def hand_over(self, due: FakeCall, late: FakeCall | None, before: FakeCall | None) -> FakeHandOver:
        self.handed.append(FakeHandOver(due, late, before))
        return self.handed[-1]

    def matrices(self, i: int) -> ExpertMatrices:
        whole = (i + 1) * torch.eye(2)
        return ExpertMatrices(gate=whole, up=whole, down=whole)


class DirectExperts(ExpertsBackend):
    """The same without any offload."""

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        return weighted_ids(hidden, routing)

    def matrices(self, i: int) -> ExpertMatrices:
        whole = (i + 1) * torch.eye(2)
        return ExpertMatrices(gate=whole, up=whole, down=whole)


class Operations(TorchDispatchMode):
    """Names and result shapes of what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append((str(func), tuple(getattr(result, "shape", ()))))
        return result
