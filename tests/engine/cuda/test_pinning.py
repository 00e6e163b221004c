"""Memory is pinned in place through the runtime's own functions, and given back."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ktbench.engine.cuda.stream import CudaHostMemory, Pins

_SOURCE = """
#include <stddef.h>
static size_t pinned;
static int last;
int cudaHostRegister(void *at, size_t bytes, unsigned flags) {
  if (flags || bytes >= (size_t)1 << 40) return last = 1;
  pinned += bytes;
  return 0;
}
int cudaHostUnregister(void *at) { return at ? 0 : (last = 1); }
int cudaGetLastError(void) { int code = last; last = 0; return code; }
size_t stand_in_pinned(void) { return pinned; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runtime that pins anything below a tebibyte."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the CUDA runtime (install gcc)")
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "pinning.c").write_text(_SOURCE)
    made = folder / "libcudart.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "pinning.c")], check=True)
    return made


def test_sizes_of_many_gigabytes_arrive_whole(library: Path) -> None:
    memory, count = CudaHostMemory(library), ctypes.CDLL(str(library)).stand_in_pinned
    count.restype = ctypes.c_size_t
    before = count()
    assert memory.pin(0x7FFF_0000_0000, 5 << 32)
    assert count() - before == 5 << 32


def test_a_refusal_leaves_no_error_behind(library: Path) -> None:
    memory = CudaHostMemory(library)
    assert not memory.pin(64, 1 << 40)
    memory.unpin(0)
    assert ctypes.CDLL(str(library)).cudaGetLastError() == 0


class Memory:
    """Pins what is smaller than 100 bytes."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def pin(self, address: int, nbytes: int) -> bool:
        if nbytes < 100:
            self.pinned[address] = nbytes
        return nbytes < 100

    def unpin(self, address: int) -> None:
        del self.pinned[address]


def test_what_cannot_be_pinned_is_counted_and_all_else_is_given_back() -> None:
    memory = Memory()
    pins, few, many = Pins(memory), torch.zeros(4), torch.zeros(50)
    for tensor in (few, many):
        pins.add(tensor)
    assert memory.pinned == {few.data_ptr(): 16}
    assert pins.pageable_bytes == 200
    pins.release()
    pins.release()
    assert memory.pinned == {}
