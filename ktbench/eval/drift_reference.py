"""The file that keeps what the unmodified model predicts, for cells of this and other processes to be held against."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ktbench.spec.plain import from_plain, to_plain

_LARGEST_BYTES = 4 << 30
_ALIGNED = 64  # bytes that the header is filled up to, as in .npy files
_LONGEST_HEADER = 4096
_OFF_ONE = 1e-3  # float32 probabilities of 100,000 tokens sum up to 1 within 1e-5

LogProbabilities = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What predictions are of: `positions` in all `windows` of the text of this digest, of `vocab` tokens each.

    `model` identifies the weights, `phase` the pass that predicts. Raises ValueError where predictions would take more
    than 4 GiB.
    """

    model: str
    phase: str
    text: str
    windows: int
    positions: int
    vocab: int

    def __post_init__(self) -> None:
        if self.data_bytes > _LARGEST_BYTES:
            fits = self.windows * _LARGEST_BYTES // self.data_bytes
            raise ValueError(
                f"limit: {self.windows} windows, {self.positions} positions of {self.vocab} tokens, are "
                f"{self.data_bytes / 2**30:.1f} GiB of predictions, allowed are {_LARGEST_BYTES / 2**30:.0f} GiB; "
                f"limit={fits} would do"
            )

    @property
    def data_bytes(self) -> int:
        """Size of all predictions in float32."""
        return self.positions * self.vocab * np.dtype(np.float32).itemsize


@contextmanager
def keeping(path: Path, subject: Subject) -> Iterator[Callable[[LogProbabilities], None]]:
    """Yields what takes the log-probabilities [positions, vocab] of one window after the other.

    The file is there once all windows are in it and the context ends well, else not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(_header(subject))
            yield lambda log_p: _append(file, log_p, subject)
            if (missing := _header_bytes(subject) + subject.data_bytes - file.tell()) != 0:
                raise ValueError(f"{path}: {missing} bytes of predictions are missing")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def kept(path: Path, subject: Subject, positions: Sequence[int]) -> Iterator[LogProbabilities]:
    """The log-probabilities [positions, vocab] of one window after the other; `positions` says how many each has.

    Raises ValueError where the file is missing, damaged or of another subject.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no predictions of the unmodified model; it is asked first")
    _require_same(path, subject)
    with path.open("rb") as file:
        file.seek(_header_bytes(subject))
        for window, count in enumerate(positions):
            log_p = np.fromfile(file, dtype="<f4", count=count * subject.vocab).reshape(count, subject.vocab)
            if not _are_probabilities(log_p):
                raise ValueError(f"{path}: is damaged, window {window} holds no probabilities; ask the baseline again")
            yield log_p


def _are_probabilities(log_p: LogProbabilities) -> bool:
    with np.errstate(over="ignore"):
        sums = np.exp(log_p).sum(axis=1, dtype=np.float64)
    return bool((np.abs(sums - 1) < _OFF_ONE).all())


def _header(subject: Subject) -> bytes:
    line = json.dumps(to_plain(subject)).encode()
    return line.ljust(-(-(len(line) + 1) // _ALIGNED) * _ALIGNED - 1) + b"\n"


def _header_bytes(subject: Subject) -> int:
    return len(_header(subject))


def _append(file: IO[bytes], log_p: LogProbabilities, subject: Subject) -> None:
    if log_p.shape[1] != subject.vocab:
        raise ValueError(f"predictions are of {log_p.shape[1]} tokens, the model's vocabulary has {subject.vocab}")
    file.write(np.ascontiguousarray(log_p, dtype="<f4").data)


def _require_same(path: Path, subject: Subject) -> None:
    with path.open("rb") as file:
        found = _read_header(file.readline(_LONGEST_HEADER))
    if found is None:
        raise ValueError(f"{path}: is no file of predictions; ask the baseline again")
    if differs := next((name for name in to_plain(subject) if getattr(found, name) != getattr(subject, name)), None):
        raise ValueError(
            f"{path}: predictions of {differs}={getattr(found, differs)}, this is {getattr(subject, differs)}; ask the "
            "baseline again"
        )
    expected = _header_bytes(subject) + subject.data_bytes
    if (size := path.stat().st_size) != expected:
        raise ValueError(f"{path}: is damaged, {size} bytes of {expected}; ask the baseline again")


def _read_header(line: bytes) -> Subject | None:
    try:
        content: Any = json.loads(line)
        return from_plain(content, Subject)
    except ValueError:
        return None
