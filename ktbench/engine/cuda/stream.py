"""CUDA streams: PyTorch kernels, copies and C functions of the host in one order, and pinned host memory."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from ktbench.spec.engine import CUDA_DRIVER, STREAM_MEMORY

_LIBRARY = re.compile(r"libcudart(-[0-9a-f]+)?\.so(\.\d+)*")
_MAPS = Path("/proc/self/maps")
_GIB = 2**30
# Of cudaHostRegister: none, and cudaHostRegisterReadOnly for mappings that may only be read, as those of packed files.
_PIN_FLAGS = (0, 0x08)
_WAIT_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


class CudaRuntime:
    """The functions of the CUDA runtime that PyTorch does not offer, or whose errors it would keep."""

    def __init__(self, library: Path) -> None:
        """Raises OSError where `library` is no CUDA runtime."""
        opened = ctypes.CDLL(str(library))
        try:
            self._launch, self._error_text = opened.cudaLaunchHostFunc, opened.cudaGetErrorString
            self._pin, self._unpin = opened.cudaHostRegister, opened.cudaHostUnregister
            self._clear_error = opened.cudaGetLastError
        except AttributeError:
            raise OSError(f"{library} is no CUDA runtime: it lacks cudaLaunchHostFunc or cudaHostRegister") from None
        self._launch.argtypes, self._launch.restype = [ctypes.c_void_p] * 3, ctypes.c_int
        self._error_text.argtypes, self._error_text.restype = [ctypes.c_int], ctypes.c_char_p
        self._pin.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        self._unpin.argtypes = [ctypes.c_void_p]

    def launch_host_function(self, stream: int, function: int, data: int) -> None:
        """Have the C function `void (*)(void *)` at `function` called with `data`: after all work put into `stream`
        so far, before any later one. In a stream that is being captured it becomes a node of the graph.

        The function must call nothing of CUDA. Raises RuntimeError with CUDA's error text.
        """
        if code := self._launch(stream, function, data):
            text = (self._error_text(code) or b"unknown error").decode(errors="replace")
            raise RuntimeError(f"cudaLaunchHostFunc failed: {text} (code {code})")

    def pin(self, address: int, nbytes: int) -> bool:
        """Whether so many bytes of host memory at `address` are pinned from now on; they may be mapped read-only."""
        return any(self._succeeded(self._pin(address, nbytes, flags)) for flags in _PIN_FLAGS)

    def unpin(self, address: int) -> None:
        """What `pin` pinned at `address` is pageable again, which it must be before that memory is freed."""
        self._succeeded(self._unpin(address))

    def _succeeded(self, code: int) -> bool:
        if code:
            self._clear_error()  # the runtime keeps it, and PyTorch would raise it after its next kernel
        return code == 0


class StreamMemory:
    """Stream memory operations: words of pinned memory that a stream writes and waits for (CUDA driver API, 6.21).

    They need no thread of the host, and are nodes of a graph where the stream is captured.
    """

    def __init__(self, library: str = CUDA_DRIVER) -> None:
        """Raises OSError where the driver is not there or has none."""
        opened = ctypes.CDLL(library)
        try:
            self._write, self._await = (getattr(opened, name) for name in STREAM_MEMORY)
            self._device_pointer, self._error_text = opened.cuMemHostGetDevicePointer_v2, opened.cuGetErrorString
        except AttributeError:
            raise OSError(f"{library} has no stream memory operations (update the NVIDIA driver)") from None
        for operation in (self._write, self._await):
            operation.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]

    def write(self, stream: int, word: int, value: int) -> None:
        """The word of 32 bits at this address becomes `value` after all work before, whose writes are seen by then.

        Raises RuntimeError with the driver's error text.
        """
        self._check("cuStreamWriteValue32", self._write(stream, self._pointer(word), value, 0))

    def await_value(self, stream: int, word: int, value: int) -> None:
        """Nothing later begins before the word of 32 bits at this address is `value`. Raises RuntimeError."""
        self._check("cuStreamWaitValue32", self._await(stream, self._pointer(word), value, _WAIT_EQUAL))

    def _pointer(self, word: int) -> int:
        pointer, address = ctypes.c_uint64(), ctypes.c_void_p(word)
        self._check("cuMemHostGetDevicePointer", self._device_pointer(ctypes.byref(pointer), address, 0))
        return pointer.value

    def _check(self, call: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._error_text(code, ctypes.byref(text))
            raise RuntimeError(f"{call} failed: {(text.value or b'unknown error').decode()} (code {code})")


@cache
def stream_memory() -> StreamMemory:
    """Those of this process. Raises OSError where there are none."""
    return StreamMemory()


@cache
def cuda_runtime() -> CudaRuntime:
    """The runtime of this process. Raises OSError where there is none."""
    return CudaRuntime(runtime_path(_MAPS.read_text(), _package_folders()))


def runtime_path(maps: str, folders: Iterable[Path]) -> Path:
    """The runtime library among the files that a process has mapped (`maps` as in /proc/PID/maps), else in `folders`.

    Raises OSError where there is none.
    """
    if found := next(_candidates(maps, folders), None):
        return found
    raise OSError(
        "no CUDA runtime library: libcudart is neither loaded by PyTorch nor there as the package nvidia-cuda-runtime "
        "(install a PyTorch built with CUDA)"
    )


def _candidates(maps: str, folders: Iterable[Path]) -> Iterator[Path]:
    mapped = (Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if "libcudart" in line)
    packaged = (path for folder in folders for path in sorted(folder.glob("*/lib/libcudart.so*"), reverse=True))
    for path in (*mapped, *packaged):
        if _LIBRARY.fullmatch(path.name):
            yield path


def _package_folders() -> list[Path]:
    """Where the nvidia-* packages put their libraries."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


class Pins:
    """Experts that are pinned until `release`. `pageable_bytes` counts those that could not be."""

    def __init__(self, memory: CudaRuntime) -> None:
        self._memory = memory
        self._held: list[Tensor] = []
        self.pageable_bytes = 0

    def add(self, tensor: Tensor) -> None:
        """Pins a contiguous tensor of the host in place, where the system allows it."""
        if self._memory.pin(tensor.data_ptr(), tensor.nbytes):
            self._held.append(tensor)
        else:
            self.pageable_bytes += tensor.nbytes

    def release(self) -> None:
        """Nothing is pinned any more; no copy may be under way."""
        self.pageable_bytes = 0
        while self._held:
            self._memory.unpin(self._held.pop().data_ptr())

    @property
    def note(self) -> str:
        """For a record, what could not be pinned; empty where all is."""
        left = self.pageable_bytes / _GIB
        return f"{left:.2f} GiB of the experts could not be pinned and are copied slower" if left else ""


class Mark(Protocol):
    """A point in the order of a stream, as torch.cuda.Event has them."""

    def synchronize(self) -> None:
        """Return when the device has come to it. The thread sleeps meanwhile, so that others may have its core."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds of the device from this mark to `end`; it has come to both."""


class CurrentStream:
    """PyTorch's current CUDA stream, at each call whichever it is then: in a capture the one that is captured.

    Does what it is given one after the other, kernels of PyTorch among them; its caller continues at once.
    """

    def copy(self, to: Tensor, source: Tensor) -> None:
        """`to` gets what `source` holds by then. A wait for it must go through this stream.

        Python does not block where the side on the host is pinned.
        """
        to.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """The end of what was put here so far."""
        mark = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def finish(self) -> None:
        """Return when everything is done."""
        self.mark().synchronize()


class StepClock:
    """Seconds of steps by the device's own clock: from when it has nothing to do to the end of a step's work.

    What the host does before the first and after the last work of a step, and the wake-up of its thread, are no part
    of it.
    """

    def __init__(self, stream: CurrentStream) -> None:
        self._stream = stream
        self._steps: list[tuple[Mark, Mark]] = []

    def start(self) -> None:
        """Forget the steps so far."""
        self._steps.clear()

    def step(self, run: Callable[[], None]) -> None:
        """Do a step that `run` puts into the stream, and return when it is done."""
        began = self._stream.mark()
        run()
        ended = self._stream.mark()
        ended.synchronize()
        self._steps.append((began, ended))

    def mean_s(self) -> float | None:
        """Of the steps since `start`; None where there was none."""
        if not self._steps:
            return None
        return fmean(began.elapsed_time(ended) for began, ended in self._steps) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """Of a device role: `current` has its own work, `side` what the host is handed, `transfers` weights that move."""

    current: CurrentStream
    side: SideStream
    transfers: SideStream


class SideStream:
    """A stream beside the current one, for copies to and from the host and functions of it, one after the other.

    `fork` and `join` order the two. Memory that either uses must stay until the current one has joined.
    """

    def __init__(self) -> None:
        """Raises OSError where no CUDA runtime is loaded."""
        self._runtime, self._side = cuda_runtime(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Have the runtime start the thread that calls functions of the host, which inherits this one's cores."""
        self.call(ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0, 0)  # free(NULL) does nothing
        self.finish()

    def fork(self) -> None:
        """What comes after on this stream waits for what was put into the current one before."""
        self._side.wait_stream(torch.cuda.current_stream())

    def join(self) -> None:
        """What comes after on the current stream waits for what was put into this one before."""
        torch.cuda.current_stream().wait_stream(self._side)

    def copy(self, to: Tensor, source: Tensor) -> None:
        """`to` gets what `source` holds by then."""
        with torch.cuda.stream(self._side):
            to.copy_(source, non_blocking=True)

    def call(self, function: int, data: int) -> None:
        """The C function `void (*)(void *)` at this address, with `data`. Nothing later begins before it returns.

        Raises RuntimeError with CUDA's error text.
        """
        self._runtime.launch_host_function(self._side.cuda_stream, function, data)

    def write(self, word: int, value: int) -> None:
        """The pinned word of 32 bits at this address becomes `value`.

        Raises RuntimeError with the driver's error text, OSError where it has no stream memory operations.
        """
        stream_memory().write(self._side.cuda_stream, word, value)

    def await_value(self, word: int, value: int) -> None:
        """Nothing later begins before the pinned word of 32 bits at this address is `value`; raises as `write`."""
        stream_memory().await_value(self._side.cuda_stream, word, value)

    def done(self) -> bool:
        """Whether everything is done by now; waits for nothing."""
        return bool(self._side.query())

    def finish(self) -> None:
        """Return when everything is done."""
        self._side.synchronize()
