"""NVIDIA devices that the driver library lists, read through ctypes, so that nothing heavy is imported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ktbench.spec.engine import CUDA_DRIVER, STREAM_MEMORY

_NAME_BYTES = 256
_BUS_ID_BYTES = 16
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY = (75, 76)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One CUDA device: its name, bytes of memory, address on the PCI bus (`0000:3b:00.0`), and compute capability.

    `capability` is major and minor, (9, 0) for an H100; None if unknown.
    """

    name: str
    memory_bytes: int
    bus_id: str = ""
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaDevices:
    """The devices that this process sees, or the one-line reason why there are none.

    `driver` is the newest version of CUDA that the driver can run, major and minor; None if it does not say.
    `stream_memory` is whether it has stream memory operations.
    """

    gpus: tuple[Gpu, ...]
    reason: str = ""
    driver: tuple[int, int] | None = None
    stream_memory: bool = False


def read_cuda_devices(load: Callable[[str], Any] = ctypes.CDLL) -> CudaDevices:
    """List the devices of the CUDA driver; `load` opens a shared library and raises OSError if it is missing."""
    try:
        library = load(CUDA_DRIVER)
    except OSError:
        return CudaDevices(gpus=(), reason="no CUDA device: libcuda is not installed (install the NVIDIA driver)")
    try:
        count = ctypes.c_int()
        _check(library, "cuInit", library.cuInit(0))
        _check(library, "cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
        gpus = tuple(_gpu(library, index) for index in range(count.value))
    except OSError as error:
        return CudaDevices(gpus=(), reason=f"no CUDA device: {error} (check nvidia-smi)")
    reason = "" if gpus else "no CUDA device: the driver lists none (check nvidia-smi)"
    has_flags = all(hasattr(library, name) for name in STREAM_MEMORY)
    return CudaDevices(gpus=gpus, reason=reason, driver=_driver(library), stream_memory=has_flags)


def _driver(library: Any) -> tuple[int, int] | None:
    """The driver encodes CUDA 13.1 as 13010."""
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _gpu(library: Any, index: int) -> Gpu:
    device, memory_bytes = ctypes.c_int(), ctypes.c_size_t()
    name, bus_id = (ctypes.create_string_buffer(size) for size in (_NAME_BYTES, _BUS_ID_BYTES))
    _check(library, "cuDeviceGet", library.cuDeviceGet(ctypes.byref(device), index))
    _check(library, "cuDeviceGetName", library.cuDeviceGetName(name, _NAME_BYTES, device))
    _check(library, "cuDeviceTotalMem", library.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device))
    _check(library, "cuDeviceGetPCIBusId", library.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device))
    major, minor = (_attribute(library, device, number) for number in _CAPABILITY)
    return Gpu(
        name=name.value.decode(errors="replace"),
        memory_bytes=memory_bytes.value,
        bus_id=bus_id.value.decode(),
        capability=(major, minor),
    )


def _attribute(library: Any, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    _check(library, "cuDeviceGetAttribute", library.cuDeviceGetAttribute(ctypes.byref(value), number, device))
    return value.value


def _check(library: Any, call: str, code: int) -> None:
    """Raise OSError with the driver's message unless the code is CUDA_SUCCESS."""
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        raise OSError(f"{call}: {(text.value or b'an unknown error').decode()} (code {code})")
