"""Hand-overs by flags give what those by host functions give, again with every replay, and end in bounded time."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ktbench.engine.cuda.graph import GraphRecording
from ktbench.engine.cuda.handover import Flags, HostLink
from ktbench.engine.cuda.offload import HostOffloadBackend
from ktbench.engine.cuda.stream import StreamMemory
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.decode.timeline import ModuleWatch
from ktbench.engine.routing import Routing
from tests.engine.cuda.fakes import FakeDevice
from tests.engine.cuda.test_offload import PackedFake, call

kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")
H = 64


class Experts(PackedFake):
    """On threads of their own; `settings` as a configuration would change them."""

    def __init__(self) -> None:
        super().__init__(kernels)
        self.settings: Any = "first"  # type: ignore[misc]


@pytest.fixture
def link() -> Iterator[HostLink]:
    made = HostLink(FakeDevice(), pinned=False)  # type: ignore[arg-type]
    made.choose("flags")
    yield made
    made.choose("host_function")


def layers(link: HostLink, count: int) -> list[HostOffloadBackend]:
    return [HostOffloadBackend(Experts(), link, ModuleWatch(), layer=number) for number in range(count)]  # type: ignore[arg-type]


def inputs(seed: int) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(3, H, generator=draw).bfloat16(), call(seed)[1]


def deferring(backends: list[HostOffloadBackend], hidden: Tensor, due: Routing, late: Routing) -> list[Tensor]:
    """Each layer defers to the next; the last one's deferred experts are fetched by themselves."""
    outputs, before = [], None
    for backend in backends:
        fetch, before = backend.begin(hidden, due, late, before)
        outputs.append(fetch())
    assert before is not None
    return [*outputs, before()]


def test_both_mechanisms_give_the_same(link: HostLink) -> None:
    backends, (hidden, due), (_, late) = layers(link, 3), inputs(0), inputs(1)
    by_flags = [one.clone() for one in deferring(backends, hidden, due, late)]
    answered = link.answered
    assert answered == 4
    link.choose("host_function")
    by_functions = deferring(backends, hidden, due, late)
    assert all(map(torch.equal, by_flags, by_functions))
    assert link.answered == answered, "counts of a mechanism that is gone stay"


@torch.inference_mode()
def test_replays_hand_over_again(link: HostLink) -> None:
    (backend,), (hidden, routing) = layers(link, 1), inputs(0)
    direct = Experts()
    device = link.side
    recording = GraphRecording(CallRecorder(), device, device, {})  # type: ignore[arg-type]
    result = recording.record(partial(backend, hidden, routing))
    before = link.answered
    for seed in range(1, 4):
        hidden.copy_(inputs(seed)[0])
        recording.replay()
        assert torch.equal(result, direct.direct(hidden, routing))
    assert link.answered == before + 3


def test_calls_in_flight_end_in_any_order(link: HostLink) -> None:
    (backend,), direct = layers(link, 1), Experts()
    calls = [inputs(seed) for seed in range(3)]
    fetches = [backend.start(*each) for each in calls]
    outputs = [fetch() for fetch in reversed(fetches)]
    for output, each in zip(reversed(outputs), calls, strict=True):
        assert torch.equal(output, direct.direct(*each))


def test_a_call_that_nobody_fetched_does_not_answer_for_the_next(link: HostLink) -> None:
    (backend,), direct = layers(link, 1), Experts()
    backend.start(*inputs(0))
    for seed in (1, 2):
        assert torch.equal(backend(*inputs(seed)), direct.direct(*inputs(seed)))


def test_slots_of_calls_that_are_gone_are_used_again() -> None:
    link = HostLink(FakeDevice(), pinned=False)  # type: ignore[arg-type]
    link.choose("flags")
    experts = Experts()
    backend = HostOffloadBackend(experts, link, ModuleWatch(), layer=0)  # type: ignore[arg-type]
    flags = link.mechanism
    assert isinstance(flags, Flags)
    for number in range(5):
        experts.settings = number
        assert torch.equal(backend(*inputs(number)), experts.direct(*inputs(number)))
    assert sorted(flags._slots.values()) == [0]
    link.choose("host_function")


def test_a_host_that_takes_too_long_is_an_error_and_no_hang() -> None:
    """The device goes on: nothing later waits for what will not come."""
    device = FakeDevice()
    link = HostLink(device, pinned=False)  # type: ignore[arg-type]
    link.mechanism = Flags(device, pinned=False, cpus=(), limit_s=0.0)  # type: ignore[arg-type]
    (backend,) = layers(link, 1)
    hidden, routing = torch.zeros(2000, H, dtype=torch.bfloat16), many(2000)
    for _ in range(2):
        backend(hidden, routing)
    with pytest.raises(RuntimeError, match="took too long"):
        link.mechanism.check()
    assert link.answered == 0


def many(tokens: int) -> Routing:
    ids = torch.arange(tokens)[:, None] % 6
    return Routing(ids=torch.cat([ids, (ids + 1) % 6], dim=1), gates=torch.ones(tokens, 2))


def test_an_error_of_the_experts_comes_with_their_check(link: HostLink) -> None:
    (backend,), (hidden, routing) = layers(link, 1), inputs(0)
    backend(hidden, Routing(ids=routing.ids + 99, gates=routing.gates))
    with pytest.raises(IndexError):
        backend.check()
    link.mechanism.check()
    assert torch.equal(backend(hidden, routing), Experts().direct(hidden, routing))


@pytest.mark.parametrize(
    ("words", "limit_s"),
    [
        (np.zeros((2, 4), np.int64), 1.0),
        (np.zeros((3, 4), np.int32), 1.0),
        (np.zeros(8, np.int32), 1.0),
        (np.zeros((2, 0), np.int32), 1.0),
        (np.zeros((2, 8), np.int32)[:, ::2], 1.0),
        (np.zeros((2, 4), np.int32), -1.0),
        (np.zeros((2, 4), np.int32), float("nan")),
    ],
)
def test_words_and_limits_of_another_kind_are_refused(words: Any, limit_s: float) -> None:
    with pytest.raises(ValueError, match="words|limit_s"):
        kernels.HandOverFlags(words, limit_s)


def test_slots_that_are_not_there_are_refused(link: HostLink) -> None:
    flags = kernels.HandOverFlags(np.zeros((2, 1), np.int32), 1.0)
    for slot in (-1, 0, 1):
        with pytest.raises(IndexError, match="no such slot"):
            flags.remove(slot)
    (backend,) = layers(link, 1)
    backend(*inputs(0))
    (handed,) = backend._handed.values()
    assert flags.add(handed) == 0
    with pytest.raises(ValueError, match="taken"):
        flags.add(handed)
    flags.remove(0)
    assert flags.add(handed) == 0
    del flags
    gc.collect()


_DRIVER = """
#include <stdint.h>
static struct { int kind; uint64_t word; uint32_t value; unsigned flags; } seen[8];
static int put;
static int note(int kind, void *stream, uint64_t word, uint32_t value, unsigned flags) {
  if (stream != (void *)0x5eed) return 400;
  seen[put].kind = kind, seen[put].word = word, seen[put].value = value, seen[put++].flags = flags;
  return 0;
}
int cuStreamWriteValue32_v2(void *s, uint64_t w, uint32_t v, unsigned f) { return note(1, s, w, v, f); }
int cuStreamWaitValue32_v2(void *s, uint64_t w, uint32_t v, unsigned f) { return note(2, s, w, v, f); }
int cuMemHostGetDevicePointer_v2(uint64_t *to, void *at, unsigned f) { *to = (uint64_t)at + (1ull << 40); return f; }
int cuGetErrorString(int code, const char **text) { *text = "invalid resource handle"; return code != 400; }
uint64_t stand_in_seen(int i, int what) {
  return what == 0 ? seen[i].kind : what == 1 ? seen[i].word : what == 2 ? seen[i].value : seen[i].flags;
}
"""


def test_the_driver_is_told_device_addresses_whole(compiled: Any) -> None:
    library = compiled(_DRIVER, "libcuda.so.99")
    memory, seen = StreamMemory(str(library)), ctypes.CDLL(str(library)).stand_in_seen
    seen.restype = ctypes.c_uint64
    high = 0x7FFF_FFFF_0000
    memory.write(0x5EED, high, 7)
    memory.await_value(0x5EED, high + 4, 1)
    found = [[seen(i, what) for what in range(4)] for i in range(2)]
    assert found == [[1, high + (1 << 40), 7, 0], [2, high + 4 + (1 << 40), 1, 1]]
    with pytest.raises(RuntimeError, match=r"cuStreamWaitValue32 failed: invalid resource handle \(code 400\)"):
        memory.await_value(0xBAD, high, 1)


def test_a_driver_without_stream_memory_operations_is_refused(compiled: Any) -> None:
    with pytest.raises(OSError, match="no stream memory operations"):
        StreamMemory(str(compiled("int cuInit(unsigned f) { return f; }", "libcuda.so.98")))
