"""How a device hands experts' calls to the host: pinned memory, and functions in its stream or flags that both see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ktbench.engine.cuda.stream import SideStream
from ktbench.engine.roles import new_threads_on
from ktbench.spec.engine import Handover

if TYPE_CHECKING:
    from ktbench._kernels import HandOver

_LEAST_BYTES = 4096  # of a block
_SLOTS = 1 << 14  # hand-overs of all layers and shapes
_WORD_BYTES = 4
_LIMIT_S = 60.0  # of the host for one hand-over by a flag


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Memory of the host for calls in flight, uint8 and pinned where a CUDA device copies to it."""

    number: int
    memory: Tensor


class Staging:
    """Blocks for the calls of all layers, one for each call that is in flight at the same time.

    In the order of one stream a block is free again once its outputs have been copied. The lowest free number is taken,
    so every pass of the same shapes uses the same memory. Sizes are powers of two, so that few serve all shapes;
    nothing is given back to the system: a stream or a graph that holds addresses may yet run.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: dict[int, list[Block]] = {}
        self._made = 0

    def take(self, nbytes: int) -> Block:
        """A block of so many bytes or more."""
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        if not free:
            self._made += 1
            return Block(self._made, torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned))
        lowest = min(free, key=lambda block: block.number)
        free.remove(lowest)
        return lowest

    def give(self, block: Block) -> None:
        """Whatever is put into the stream from now on may use it."""
        self._free[block.memory.nbytes].append(block)


class Mechanism(Protocol):
    """Has hand-overs made in the order of the side stream; `answered` counts those that were asked for by flags."""

    @property
    def answered(self) -> int:
        """Cumulative."""

    def begin(self, handed: HandOver) -> None:
        """What comes after in the stream may run while the host works."""

    def end(self, handed: HandOver, *, begun: bool) -> None:
        """What comes after in the stream begins when the host is done. `begun`: by `begin`, else with another one."""

    def forget(self, handed: HandOver) -> None:
        """It is not used any more; all that was begun has ended."""

    def check(self) -> None:
        """Raise RuntimeError where the host took too long."""

    def close(self) -> None:
        """Nothing is used any more."""


class HostFunctions:
    """By functions of the host in the stream (cudaLaunchHostFunc), which a thread of CUDA's calls."""

    answered = 0

    def __init__(self, side: SideStream) -> None:
        self._side = side

    def begin(self, handed: HandOver) -> None:
        self._side.call(handed.submit, handed.data)

    def end(self, handed: HandOver, *, begun: bool) -> None:
        self._side.call(handed.wait, handed.data)

    def forget(self, handed: HandOver) -> None:
        """See `Mechanism`."""

    def check(self) -> None:
        """Nothing takes too long: the stream waits as long as the host works."""

    def close(self) -> None:
        """See `Mechanism`."""


class Flags:
    """By words of pinned memory, which the stream writes and waits for and a thread on `cpus` watches.

    A replay of a graph writes the same values again, so the stream takes back the answer of a hand-over before it asks.
    """

    def __init__(self, side: SideStream, *, pinned: bool, cpus: Sequence[int], limit_s: float = _LIMIT_S) -> None:
        from ktbench._kernels import HandOverFlags  # base runs without the kernel extension

        self._side = side
        self._words = torch.zeros(2, _SLOTS, dtype=torch.int32, pin_memory=pinned)
        self._asks, self._answers = (self._words[row].data_ptr() for row in range(2))
        with new_threads_on(cpus) if cpus else nullcontext():
            self._flags = HandOverFlags(self._words.numpy(), limit_s)
        self._slots: dict[HandOver, int] = {}

    @property
    def answered(self) -> int:
        return self._flags.answered

    def begin(self, handed: HandOver) -> None:
        self._ask(handed, self._flags.BEGIN_AND_END)

    def end(self, handed: HandOver, *, begun: bool) -> None:
        if not begun:
            self._ask(handed, self._flags.END_ALONE)
        self._side.await_value(self._answers + _WORD_BYTES * self._slots[handed], 1)

    def _ask(self, handed: HandOver, what: int) -> None:
        if handed not in self._slots:
            self._slots[handed] = self._flags.add(handed)
        at = _WORD_BYTES * self._slots[handed]
        self._side.write(self._answers + at, 0)
        self._side.write(self._asks + at, what)

    def forget(self, handed: HandOver) -> None:
        if (slot := self._slots.pop(handed, None)) is not None:
            self._flags.remove(slot)

    def check(self) -> None:
        self._flags.check()

    def close(self) -> None:
        """The thread ends."""
        self._slots.clear()
        del self._flags


class HostLink:
    """What the layers share to hand calls over: the side stream, memory for calls in flight, and the mechanism.

    Threads of the mechanism run on `cpus`, anywhere where there are none.
    """

    def __init__(self, side: SideStream, *, pinned: bool, cpus: Sequence[int] = ()) -> None:
        self.side, self.staging = side, Staging(pinned=pinned)
        self.mechanism: Mechanism = HostFunctions(side)
        self._pinned, self._cpus = pinned, cpus
        self._name: Handover = "host_function"
        self._answered = 0

    def choose(self, name: Handover) -> None:
        """From now on; nothing that was captured before may be replayed. Raises OSError where a device has no flags."""
        if name == self._name:
            return
        self.side.finish()
        self._answered += self.mechanism.answered
        self.mechanism.close()
        self.mechanism, self._name = HostFunctions(self.side), "host_function"
        if name == "flags":
            self.mechanism = Flags(self.side, pinned=self._pinned, cpus=self._cpus)
        self._name = name

    @property
    def answered(self) -> int:
        """Hand-overs that were asked for by flags so far."""
        return self._answered + self.mechanism.answered
