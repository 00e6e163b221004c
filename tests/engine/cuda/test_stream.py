"""Host functions run in stream order, and memory is pinned in place and released, through the runtime's functions."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from ktbench.engine.cuda.stream import CudaRuntime, Pins, StepClock, runtime_path

STREAM = 0x5EED
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def test_functions_run_in_order_with_their_data(stand_in: Path, run_queue: ctypes.CDLL) -> None:
    runtime, seen = CudaRuntime(stand_in), []
    first = HostFunction(lambda data: seen.append(("first", data)))
    second = HostFunction(lambda data: seen.append(("second", data)))
    high = 0x7FFF_FFFF_FFFF  # an address does not fit C's int
    for function, data in ((first, high), (second, 1), (first, 2)):
        runtime.launch_host_function(STREAM, ctypes.cast(function, ctypes.c_void_p).value or 0, data)
    assert not seen, "launching does not call"
    run_queue.stand_in_run()
    assert seen == [("first", high), ("second", 1), ("first", 2)]


def test_errors_come_in_words(stand_in: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cudaLaunchHostFunc failed: invalid resource handle \(code 400\)"):
        CudaRuntime(stand_in).launch_host_function(0xBAD, 1, 2)


def test_a_full_queue_is_an_error(stand_in: Path, run_queue: ctypes.CDLL) -> None:
    runtime, nothing = CudaRuntime(stand_in), HostFunction(lambda _: None)
    address = ctypes.cast(nothing, ctypes.c_void_p).value or 0
    for _ in range(16):
        runtime.launch_host_function(STREAM, address, 0)
    with pytest.raises(RuntimeError, match=r"out of memory \(code 2\)"):
        runtime.launch_host_function(STREAM, address, 0)
    run_queue.stand_in_run()


def test_the_loaded_library_is_found_among_the_files_of_the_process(stand_in: Path, run_queue: ctypes.CDLL) -> None:
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(stand_in.parent) in line]
    assert lines, f"{run_queue} is loaded"
    assert runtime_path("\n".join(lines), []) == stand_in


MAPPED = "7f00-7f01 r-xp 00000000 08:01 42    {}\n"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("libcudart.so.12", True),
        ("libcudart.so.12.4.127", True),
        ("libcudart-9335f6a2.so.12", True),
        ("libcudart.so", True),
        ("libcudart_static.a", False),
        ("notlibcudart.so.12", False),
        ("libcudart.so.12.bak", False),
    ],
)
def test_names_of_the_library(name: str, found: bool) -> None:
    maps = MAPPED.format("/usr/lib/libc.so.6") + MAPPED.format(f"/opt/with space/{name}") + "7f02-7f03 rw-p 0 0:0 0\n"
    if found:
        assert runtime_path(maps, []) == Path(f"/opt/with space/{name}")
    else:
        with pytest.raises(OSError, match="no CUDA runtime library"):
            runtime_path(maps, [])


def test_the_newest_packaged_library_serves_where_none_is_loaded(tmp_path: Path) -> None:
    for name in ("cuda_runtime/lib/libcudart.so.11", "cuda_runtime/lib/libcudart.so.12", "cublas/lib/libcublas.so.12"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert runtime_path("", [tmp_path]) == tmp_path / "cuda_runtime/lib/libcudart.so.12"
    loaded = "/lib/libcudart.so.10"
    assert runtime_path(MAPPED.format(loaded), [tmp_path]) == Path(loaded), "what is loaded comes first"


def test_a_library_of_something_else_is_refused() -> None:
    with pytest.raises(OSError, match="is no CUDA runtime: it lacks cudaLaunchHostFunc"):
        CudaRuntime(Path(ctypes.util.find_library("m") or "libm.so.6"))


def test_sizes_of_many_gigabytes_arrive_whole(stand_in: Path, run_queue: ctypes.CDLL) -> None:
    memory, count = CudaRuntime(stand_in), run_queue.stand_in_pinned
    count.restype = ctypes.c_size_t
    before = count()
    assert memory.pin(0x7FFF_0000_0000, 5 << 32)
    assert count() - before == 5 << 32


def test_a_refusal_leaves_no_error_behind(stand_in: Path, run_queue: ctypes.CDLL) -> None:
    memory = CudaRuntime(stand_in)
    assert not memory.pin(64, 1 << 40)
    memory.unpin(0)
    assert run_queue.cudaGetLastError() == 0


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE])
def test_mappings_that_may_only_be_read_are_pinned_all_the_same(
    stand_in: Path, run_queue: ctypes.CDLL, tmp_path: Path, access: int
) -> None:
    """As packed weights in a folder are mapped."""
    file, count = tmp_path / "packed", run_queue.stand_in_pinned
    file.write_bytes(bytes(4096))
    count.restype = ctypes.c_size_t
    with file.open("r+b") as opened:
        held = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=access), np.uint8)
    before, pins = count(), Pins(CudaRuntime(stand_in))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch has no tensors that are read-only
        pins.add(torch.from_numpy(held))
    assert count() - before == 4096
    assert (pins.pageable_bytes, pins.note) == (0, "")
    assert run_queue.cudaGetLastError() == 0


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
    assert "0.00 GiB" in pins.note
    pins.release()
    pins.release()
    assert memory.pinned == {}
    assert pins.note == ""


class Told:
    """A stream whose marks come at times that are given, and that notes what happens."""

    def __init__(self, *at_ms: float) -> None:
        self._at_ms = iter(at_ms)
        self.log: list[object] = []

    def mark(self) -> Told.Mark:
        self.log.append("mark")
        return Told.Mark(self, next(self._at_ms))

    class Mark:
        def __init__(self, stream: Told, at_ms: float) -> None:
            self._stream, self.at_ms = stream, at_ms

        def synchronize(self) -> None:
            self._stream.log.append(("wait", self.at_ms))

        def elapsed_time(self, end: Told.Mark) -> float:
            return end.at_ms - self.at_ms


def test_steps_are_between_two_marks_and_waited_for_once() -> None:
    stream = Told(10, 14, 20, 22, 100, 107)
    clock = StepClock(stream)  # type: ignore[arg-type]
    assert clock.mean_s() is None
    for _ in range(2):
        clock.step(lambda: stream.log.append("work"))
    assert stream.log == ["mark", "work", "mark", ("wait", 14), "mark", "work", "mark", ("wait", 22)]
    assert clock.mean_s() == pytest.approx(0.003)
    clock.start()
    assert clock.mean_s() is None
    clock.step(lambda: None)
    assert clock.mean_s() == pytest.approx(0.007)
