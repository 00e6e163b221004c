"""Host memory that a CUDA device copies from by itself: pinned where it lies, with no second copy of it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ktbench.engine.cuda.host_functions import runtime_path


class HostMemory(Protocol):
    """Who pins memory of the host."""

    def pin(self, address: int, nbytes: int) -> bool:
        """Whether so many bytes at `address` are pinned from now on."""

    def unpin(self, address: int) -> None:
        """What `pin` pinned at `address` is the system's again. It must be before that memory is freed."""


class CudaHostMemory:
    """Implements `HostMemory` by `cudaHostRegister`."""

    def __init__(self, library: Path) -> None:
        """Raises OSError where `library` cannot be loaded."""
        runtime = ctypes.CDLL(str(library))
        self._pin, self._unpin = runtime.cudaHostRegister, runtime.cudaHostUnregister
        self._forget = runtime.cudaGetLastError
        self._pin.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        self._unpin.argtypes = [ctypes.c_void_p]

    @classmethod
    def open(cls) -> CudaHostMemory:
        """On the runtime that PyTorch has loaded. Raises OSError where there is none."""
        return cls(runtime_path(Path("/proc/self/maps").read_text(), ()))

    def pin(self, address: int, nbytes: int) -> bool:
        """See `HostMemory`."""
        return self._done(self._pin(address, nbytes, 0))

    def unpin(self, address: int) -> None:
        """See `HostMemory`."""
        self._done(self._unpin(address))

    def _done(self, code: int) -> bool:
        if code:
            self._forget()  # the runtime keeps it, and PyTorch would raise it after its next kernel
        return code == 0


class Pins:
    """Tensors that are pinned until `release`. `pageable_bytes` counts those that could not be."""

    def __init__(self, memory: HostMemory) -> None:
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
        while self._held:
            self._memory.unpin(self._held.pop().data_ptr())
