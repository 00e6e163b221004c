"""C functions of the host in the order of a CUDA stream, by ctypes on the runtime library that PyTorch has loaded."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_LIBRARY = re.compile(r"libcudart(-[0-9a-f]+)?\.so(\.\d+)*")
_MAPS = Path("/proc/self/maps")


class CudaRuntime:
    """The two functions of the CUDA runtime that PyTorch does not offer."""

    def __init__(self, library: Path) -> None:
        """Raises OSError where `library` is no CUDA runtime."""
        opened = ctypes.CDLL(str(library))
        try:
            self._launch, self._words = opened.cudaLaunchHostFunc, opened.cudaGetErrorString
        except AttributeError:
            raise OSError(f"{library} is no CUDA runtime: it has no cudaLaunchHostFunc") from None
        self._launch.argtypes, self._launch.restype = [ctypes.c_void_p] * 3, ctypes.c_int
        self._words.argtypes, self._words.restype = [ctypes.c_int], ctypes.c_char_p

    def launch_host_function(self, stream: int, function: int, data: int) -> None:
        """Have the C function `void (*)(void *)` at `function` called with `data`: after all work put into `stream`
        so far, before any later one. In a stream that is being captured it becomes a node of the graph.

        The function must call nothing of CUDA. Raises RuntimeError with CUDA's own words.
        """
        if code := self._launch(stream, function, data):
            words = (self._words(code) or b"unknown error").decode(errors="replace")
            raise RuntimeError(f"cudaLaunchHostFunc says {words} (code {code})")


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
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
