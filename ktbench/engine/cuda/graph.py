"""A decode step as one CUDA graph: recorded once, then launched without Python in between."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter_ns

import torch
from torch import Tensor

from ktbench.engine.cuda.stream import CurrentStream
from ktbench.engine.decode.program import Call, CallRecorder, NotRecordable, StepRecorder
from ktbench.engine.decode.timeline import Segment, Where
from ktbench.spec.timeline import GRAPH

# Work before a capture chooses kernels, makes workspaces and buffers: none of that may happen inside.
_WARM_UPS = 2


class CudaCapturing:
    """Captures by torch.cuda.CUDAGraph, as PyTorch's notes on CUDA graphs ask for."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, work goes to a stream of its own, which the current one waits for afterwards."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(stream)

    @contextmanager
    def captured(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Inside, work is captured and not done. Raises RuntimeError at what cannot be."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # The outer stream is set again even where the end of a capture raises: torch.cuda.graph alone would not.
        with _no_collection(), torch.cuda.stream(torch.cuda.current_stream()):
            try:
                with torch.cuda.graph(graph, pool=pool):
                    yield graph
            except BaseException:
                _end_allocation(pool)
                raise


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collecting cycles in a capture could free memory or end streams, which breaks it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _end_allocation(pool: tuple[int, int]) -> None:
    """Have later allocations come from the usual pool.

    Up to version 2.11 of PyTorch the end of a broken capture raises before it sees to that, and every later allocation
    would go to a pool that no graph keeps.
    """
    with suppress(RuntimeError):  # it has been seen to
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


class _Counting:
    """Records what operators do besides work of the device: they count."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def note(self, call: Call, *_memory: object) -> None:
        """To be done again with every replay."""
        self.calls.append(call)


class GraphRecording:
    """Implements `ktbench.engine.decode.program.StepRecording`. `counted["graph_replays"]` counts."""

    def __init__(
        self, recorder: CallRecorder, stream: CurrentStream, capturing: CudaCapturing, counted: dict[str, int]
    ) -> None:
        self.watch = recorder.watch
        self._recorder, self._stream, self._capturing, self._counted = recorder, stream, capturing, counted
        self._graph: torch.cuda.CUDAGraph | None = None
        self._counts: list[Call] = []
        counted.setdefault("graph_replays", 0)

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Capture what `run` does; gives its result, which each replay computes anew in the same memory.

        `run` is done for warm-up before. Raises NotRecordable with the reason, torch.OutOfMemoryError.
        """
        self._graph = None
        counting = _Counting()
        try:
            self._warm_up(run)
            self._recorder.sink = counting
            with self._capturing.captured() as graph:
                result = run()
        except RuntimeError as error:
            first = _first(error)
            if isinstance(first, torch.OutOfMemoryError):  # of the device: no reason to run without a graph
                raise first from None
            line, *_ = str(first).splitlines() or [repr(first)]
            raise NotRecordable(f"CUDA cannot capture it: {line}") from error
        finally:
            self._recorder.sink = None
        self._graph, self._counts = graph, counting.calls
        return result

    def _warm_up(self, run: Callable[[], Tensor]) -> None:
        """The first time under a recorder: its errors name what Python would have to decide, a capture's do not."""
        with self._capturing.aside():
            with StepRecorder(self.watch):
                run()
            for _ in range(_WARM_UPS - 1):
                run()

    def replay(self) -> None:
        """Do the step once more on whatever its inputs hold by then."""
        assert self._graph is not None
        for count in self._counts:
            count()
        self._graph.replay()
        self._counted["graph_replays"] += 1

    def replay_timed(self) -> list[Segment]:
        """The same and its time as a whole: no clock can be read inside a graph."""
        self._stream.finish()
        began = perf_counter_ns()
        self.replay()
        self._stream.finish()
        return [Segment(Where(GRAPH), began, perf_counter_ns())]


def _first(error: BaseException) -> BaseException:
    """What was raised first: the end of a broken capture raises, too."""
    while error.__context__ is not None:
        error = error.__context__
    return error
