"""How far loading is: what is done at the moment, in bytes of how many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

_EVERY_S = 0.25
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """A report: `doing` is a few words (`packing layer 12/48`), `stage` what the bytes are counted of."""

    doing: str
    stage: str
    done_bytes: int
    total_bytes: int


class LoadProgress:
    """Counts the bytes of one stage after the other and reports them a few times a second."""

    def __init__(self, say: Callable[[Loading], None] | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._say, self._clock = say, clock
        self._doing = self._stage = ""
        self._done = self._total = 0
        self._said_s: float | None = None

    def begin(self, stage: str, total_bytes: int) -> None:
        """What follows is counted anew."""
        self._doing = self._stage = stage
        self._done, self._total = 0, total_bytes

    def over(self, stage: str, sizes: Mapping[str, int]) -> Iterator[str]:
        """The names of tensors, whose bytes are done when the next one is asked for."""
        self.begin(stage, sum(sizes.values()))
        for name, nbytes in sizes.items():
            yield name
            self.reach(self._done + nbytes)

    def at(self, number: int, of: int) -> None:
        """The layer, counted from 1, that the stage is at."""
        self._doing = f"{self._stage} layer {number}/{of}"

    def reach(self, done_bytes: int) -> None:
        """So many bytes of the stage are done."""
        self._done = done_bytes
        if self._say is None or (self._said_s is not None and self._clock() - self._said_s < _EVERY_S):
            return
        self._said_s = self._clock()
        total = max(self._total, self._done)
        self._say(Loading(doing=self._doing, stage=self._stage, done_bytes=self._done, total_bytes=total))


SILENT = LoadProgress()


class LayerProgress:
    """Counts the experts of one MoE layer after the other, `stage` being what is done with them."""

    def __init__(self, progress: LoadProgress, stage: str, layer_bytes: Sequence[int], experts: int) -> None:
        self._progress, self._stage, self._experts = progress, stage, experts
        self._layer_bytes, self._done, self._layer = layer_bytes, 0, 0

    def over(self, layers: Sequence[T]) -> Iterator[T]:
        """The layers, each of which is done when the next one is asked for."""
        self._progress.begin(self._stage, sum(self._layer_bytes))
        for number, (layer, nbytes) in enumerate(zip(layers, self._layer_bytes, strict=True), 1):
            self._progress.at(number, len(layers))
            self._layer = nbytes
            yield layer
            self._done += nbytes
            self._progress.reach(self._done)

    def counted(self, store: Callable[[int], T]) -> Callable[[int], T]:
        """The store of a layer's experts, which counts those that it has been asked for."""

        def read(i: int) -> T:
            self._progress.reach(self._done + i * self._layer // self._experts)
            return store(i)

        return read
