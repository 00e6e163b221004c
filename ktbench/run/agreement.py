"""Logits of one system held against those of another that has the same weights and was given the same tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ktbench.spec.record import Agreement, Cell
from ktbench.spec.wire import digest, to_plain

FOLDER = "logits"


def logits_file(folder: Path, cell: Cell, cells: Sequence[Cell], code_id: str) -> Path | None:
    """The file below a run's folder for the cells with this one's weights and work; None where all are of one system.

    A layer alone has no logits: there every output is held against float32. What other code gave is no reference.
    """
    key = _key(cell)
    systems = {other.spec.system for other in cells if _key(other) == key}
    if len(systems) < 2 or cell.spec.workload.phase == "layer":
        return None
    return folder / FOLDER / f"{digest([code_id, key])}.npz"


def _key(cell: Cell) -> list[object]:
    spec = cell.spec
    return [to_plain(spec.model), to_plain(spec.workload), spec.precision, spec.device_precision]


# Two systems that run the same weights differ by roundings. A divergence of a quarter of that between unrelated answers
# of equal spread is none: other weights, other tokens, another position.
_MOST_OF_UNRELATED = 0.25
_LEAST_UNRELATED_NATS = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """`logits` [P, vocab] float32 at P positions, of the cell of this key that is called `label`."""

    label: str
    cell: str
    logits: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Write a file that is there whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            np.savez(file, label=np.array(self.label), cell=np.array(self.cell), logits=self.logits)
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Answers | None:
        """What a file holds, None where there is none that can be read."""
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return cls(label=str(file["label"]), cell=str(file["cell"]), logits=file["logits"])
        except (OSError, ValueError, KeyError, BadZipFile):
            return None


def collect_answers(
    step: Callable[[], None], logits: Callable[[], NDArray[np.float32]], steps: int
) -> NDArray[np.float32]:
    """[steps x batch, vocab]: the logits after each of `steps` steps."""
    found = []
    for _ in range(steps):
        step()
        found.append(np.array(logits(), dtype=np.float32))
    return np.concatenate(found)


def agreement(reference: Answers, own: NDArray[np.float32]) -> Agreement:
    """How far `own` [P, vocab] agrees. Raises ValueError for another number of positions or tokens."""
    if own.shape != reference.logits.shape:
        raise ValueError(
            f"logits are {list(own.shape)} (positions, vocabulary), those of {reference.label} "
            f"{list(reference.logits.shape)}: not the same work"
        )
    same = reference.logits.argmax(axis=1) == own.argmax(axis=1)
    return Agreement(
        against=reference.label,
        top1=float(same.mean()),
        kl_nats=divergence_nats(reference.logits, own),
        positions=len(own),
    )


def divergence_nats(p: NDArray[np.float32], q: NDArray[np.float32]) -> float:
    """Mean over positions of KL(softmax(p) ‖ softmax(q)) in nats (Kullback and Leibler, 1951).

    Infinite where either holds something that is not finite.
    """
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        return float("inf")
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return float(max(0.0, (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log


def disagreement(reference: Answers, found: Agreement) -> str:
    """Why these cannot be the answers of the same weights to the same tokens; empty where they can.

    The yardstick is a mutant, the reference's own logits given to other tokens: where even that would pass, all tokens
    being equally likely, there is no telling.
    """
    mutant = np.roll(reference.logits, reference.logits.shape[1] // 2, axis=1)
    unrelated = divergence_nats(reference.logits, mutant)
    if unrelated >= _LEAST_UNRELATED_NATS and found.kl_nats <= _MOST_OF_UNRELATED * unrelated:
        return ""
    return (
        f"its logits are not those of {found.against}: KL {found.kl_nats:.3g} nats, top-1 {found.top1:.0%} of "
        f"{found.positions} positions; unrelated ones are {unrelated:.3g} nats apart"
    )
