"""Agreement of the logits of two systems with the same weights on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ktbench.files import whole_file
from ktbench.spec.record import Agreement, Cell
from ktbench.spec.wire import digest, to_plain

FOLDER = "logits"


def logits_file(folder: Path, cell: Cell, cells: Sequence[Cell], code_id: str) -> Path | None:
    """The file in a run's folder for cells with these weights and this workload; None if all are of one system.

    A single layer has no logits (every output is compared with float32); in serving, whole answers are compared. Logits
    from other code are not a reference. Training is compared between all arms, whatever their precision, and so are
    arms if some of them alter outputs by a feature from outside.
    """
    key = _key(cell)
    alike = [other.spec for other in cells if _key(other) == key]
    phase, alters = cell.spec.workload.phase, any(spec.engine.own and spec.engine.alters_outputs for spec in alike)
    one_system = len({spec.system for spec in alike}) < 2
    if phase in ("layer", "serve") or (phase != "train" and one_system and not alters):
        return None
    return folder / FOLDER / f"{digest([code_id, key])}.npz"


def _key(cell: Cell) -> list[object]:
    spec = cell.spec
    if spec.workload.phase == "train":
        return [to_plain(spec.model), to_plain(replace(spec.workload, recompute=True))]
    return [to_plain(spec.model), to_plain(spec.workload), spec.precision, spec.device_precision]


# Two systems with the same weights differ by rounding. A divergence above a quarter of that between unrelated logits of
# equal spread means other weights, other tokens, or another position.
_MAX_OF_UNRELATED = 0.25
_MIN_UNRELATED_NATS = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedLogits:
    """`logits` [P, vocab] float32 at P positions, of the cell with the key `cell` and this `label`."""

    label: str
    cell: str
    logits: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Write the file. Raises NotWritten."""
        with whole_file(path) as part, part.open("wb") as file:
            np.savez(file, label=np.array(self.label), cell=np.array(self.cell), logits=self.logits)

    @classmethod
    def read(cls, path: Path) -> SavedLogits | None:
        """The content of a file, None if it is missing or unreadable."""
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return cls(label=str(file["label"]), cell=str(file["cell"]), logits=file["logits"])
        except (OSError, ValueError, KeyError, BadZipFile):
            return None


def collect_logits(
    step: Callable[[], None], logits: Callable[[], NDArray[np.float32]], steps: int
) -> NDArray[np.float32]:
    """[steps x batch, vocab]: the logits after each of `steps` steps."""
    rows = []
    for _ in range(steps):
        step()
        rows.append(np.array(logits(), dtype=np.float32))
    return np.concatenate(rows)


def agreement(reference: SavedLogits, own: NDArray[np.float32]) -> Agreement:
    """The agreement of `own` [P, vocab]. Raises ValueError for another number of positions or tokens."""
    if own.shape != reference.logits.shape:
        raise ValueError(
            f"logits are {list(own.shape)} (positions, vocabulary), those of {reference.label} "
            f"{list(reference.logits.shape)}: not the same workload"
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

    Infinite if either has values that are not finite.
    """
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        return float("inf")
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return float(max(0.0, (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log


def disagreement(reference: SavedLogits, result: Agreement) -> str:
    """Why these logits cannot be from the same weights and tokens; empty if they can.

    The threshold comes from a mutant, the reference's own logits assigned to other tokens: if that has no divergence
    either, because all tokens are equally likely, every agreement fails.
    """
    mutant = np.roll(reference.logits, reference.logits.shape[1] // 2, axis=1)
    unrelated = divergence_nats(reference.logits, mutant)
    if unrelated >= _MIN_UNRELATED_NATS and result.kl_nats <= _MAX_OF_UNRELATED * unrelated:
        return ""
    return (
        f"its logits are not those of {result.against}: KL {result.kl_nats:.3g} nats, top-1 {result.top1:.0%} of "
        f"{result.positions} positions; unrelated ones are {unrelated:.3g} nats apart"
    )
