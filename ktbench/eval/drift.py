"""The divergence of a cell's predictions from the unmodified model's on the same text; the latter are kept in a
file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.eval.evaluate import GradedAnswer
from ktbench.eval.tasks.harness import TextDocument
from ktbench.eval.texts import Window, Windows, cut_windows, draw_sample, require_known
from ktbench.files import whole_file
from ktbench.spec.errors import at_least
from ktbench.spec.record import KL
from ktbench.spec.wire import digest, from_plain, to_plain

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ktbench.engine.generate import Generator

_LARGEST_BYTES = 4 << 30
_ALIGNED = 64  # bytes that the header is filled up to, as in .npy files
_LONGEST_HEADER = 4096
_OFF_ONE = 1e-3  # float32 probabilities of 100,000 tokens sum up to 1 within 1e-5

LogProbabilities = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceHeader:
    """The subject of predictions: `positions` in all `windows` of the text with this digest, over `vocab` tokens each.

    `model` identifies the weights, `phase` the pass that predicts. Raises ValueError if predictions would take more
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
def write_reference(path: Path, subject: ReferenceHeader) -> Iterator[Callable[[LogProbabilities], None]]:
    """Yields a function that takes the log-probabilities [positions, vocab] of one window after another.

    The file exists only once all windows are in it and the context ends without an error. Raises NotWritten.
    """
    with whole_file(path, synced=True) as part, part.open("wb") as file:
        file.write(_header(subject))
        yield lambda log_p: _append(file, log_p, subject)
        if (missing := len(_header(subject)) + subject.data_bytes - file.tell()) != 0:
            raise ValueError(f"{path}: {missing} bytes of predictions are missing")


def read_reference(path: Path, subject: ReferenceHeader, positions: Sequence[int]) -> Iterator[LogProbabilities]:
    """The log-probabilities [positions, vocab] of one window after another; `positions` are their numbers.

    Raises ValueError if the file is missing, damaged or for another subject.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no predictions of the unmodified model, which has to be evaluated first")
    _require_same(path, subject)
    with path.open("rb") as file:
        file.seek(len(_header(subject)))
        for window, count in enumerate(positions):
            log_p = np.fromfile(file, dtype="<f4", count=count * subject.vocab).reshape(count, subject.vocab)
            if not _are_probabilities(log_p):
                raise ValueError(
                    f"{path}: is damaged, window {window} holds no probabilities; evaluate the baseline again"
                )
            yield log_p


def _are_probabilities(log_p: LogProbabilities) -> bool:
    with np.errstate(over="ignore"):
        sums = np.exp(log_p).sum(axis=1, dtype=np.float64)
    return bool((np.abs(sums - 1) < _OFF_ONE).all())


def _header(subject: ReferenceHeader) -> bytes:
    line = json.dumps(to_plain(subject)).encode()
    return line.ljust(-(-(len(line) + 1) // _ALIGNED) * _ALIGNED - 1) + b"\n"


def _append(file: IO[bytes], log_p: LogProbabilities, subject: ReferenceHeader) -> None:
    if log_p.shape[1] != subject.vocab:
        raise ValueError(f"predictions are of {log_p.shape[1]} tokens, the model's vocabulary has {subject.vocab}")
    file.write(np.ascontiguousarray(log_p, dtype="<f4").data)


def _require_same(path: Path, subject: ReferenceHeader) -> None:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_HEADER)
    try:
        written = from_plain(json.loads(line), ReferenceHeader)
    except ValueError:
        raise ValueError(f"{path}: is no file of predictions; evaluate the baseline again") from None
    if differs := next((name for name in to_plain(subject) if getattr(written, name) != getattr(subject, name)), None):
        raise ValueError(
            f"{path}: predictions of {differs}={getattr(written, differs)}, this is {getattr(subject, differs)}; "
            "evaluate the baseline again"
        )
    expected = len(_header(subject)) + subject.data_bytes
    if (size := path.stat().st_size) != expected:
        raise ValueError(f"{path}: is damaged, {size} bytes of {expected}; evaluate the baseline again")


Phase = Literal["decode", "prefill"]

_BATCH_BYTES = 256 << 20  # of logits at once
_POSITIONS = 8  # at once in float64
_NOT_FINITE = "its logits are not finite"


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftPlan:
    """What is predicted: in running text `given` tokens after each `prompt` tokens, elsewhere continuations.

    `phase` is the pass that predicts. `model` identifies the weights, which have `vocab` tokens. `limit` windows are
    drawn with `seed`; `batch` go through the model together, fewer if their logits would take more than 256 MiB.
    """

    phase: Phase
    model: str
    vocab: int
    prompt: int = 64
    given: int = 64
    limit: int | None = None
    seed: int = 0
    batch: int = 32

    def __post_init__(self) -> None:
        at_least("drift.prompt", self.prompt, 2)  # one token for the prefill, one for the first decode step
        at_least("drift.given", self.given, 1)
        at_least("drift.batch", self.batch, 1)

    @property
    def setting(self) -> str:
        """How predictions are made, in the words of a caption."""
        by = "one a decode step" if self.phase == "decode" else "in one prefill pass"
        return f"given tokens {by}; running text in windows of {self.prompt} + {self.given} tokens"

    def subject(self, windows: Windows) -> ReferenceHeader:
        """The subject of predictions for these windows. Raises ValueError if they would be too large to keep."""
        return ReferenceHeader(
            model=self.model,
            phase=self.phase,
            text=digest([[row.question, list(row.prompt), list(row.given)] for row in windows.rows]),
            windows=len(windows.rows),
            positions=sum(len(row.given) for row in windows.rows),
            vocab=self.vocab,
        )


def measure_drift(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[TextDocument],
    *,
    plan: DriftPlan,
    reference: Path,
    is_reference: bool,
) -> Iterator[GradedAnswer]:
    """Three answers per window, all weighted by its positions: `kl_nats`, `top1` and `nll_nats`.

    Windows of one document are a cluster.

    `kl_nats` is the mean of KL(unmodified ‖ this), `top1` the share of positions with the same most likely token,
    `nll_nats` the negative log-likelihood of the given tokens. The unmodified model is evaluated with `is_reference`:
    its predictions are kept in the file `reference`, which exists once all its answers were taken, and which the others
    read. Documents too short for a window are answers without a value. Raises ValueError for a reference that is
    missing, damaged or for another model or text, for texts that are all too short, and for windows too long for the
    model.
    """
    cut = cut_windows(documents, tokenizer, plan.prompt, plan.given)
    windows = Windows(rows=draw_sample(cut.rows, plan.limit, plan.seed), short=cut.short)
    longest, most = max(len(row.prompt) + len(row.given) for row in windows.rows), generator.max_positions
    if most is not None and longest > most:
        raise ValueError(f"drift: windows of {longest} tokens, the model was made for {most}")
    for window in windows.rows:
        require_known((*window.prompt, *window.given), plan.vocab)
    subject = plan.subject(windows)
    why = f"has fewer than the {plan.prompt + plan.given} tokens of a window"
    yield from (GradedAnswer(question=name, metric=KL, value=None, weight=0.0, why=why) for name in windows.short)
    predictions = zip(windows.rows, _predict(generator, windows.rows, plan), strict=True)
    if is_reference:
        with write_reference(reference, subject) as keep:
            for window, log_q in predictions:
                if not log_q.isfinite().all():
                    raise ValueError(f"{window.question}: the unmodified model's logits are not finite")
                keep(log_q.numpy())
                yield from _answers(window, log_q, log_q)
    else:
        references = read_reference(reference, subject, [len(window.given) for window in windows.rows])
        for log_p, (window, log_q) in zip(references, predictions, strict=True):
            yield from _answers(window, torch.from_numpy(log_p), log_q)


def divergence_nats(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities [positions, vocab] at each position, float64 (Kullback and Leibler, 1951).

    Σ p·(d + e⁻ᵈ − 1) with d = log p − log q. Since probabilities sum to 1 this equals Σ p·d, but no term is negative,
    and rounding errors of d enter squared.
    """
    blocks = [slice(first, first + _POSITIONS) for first in range(0, len(log_p), _POSITIONS)]
    return torch.cat([_divergence(log_p[block].double(), log_q[block].double()) for block in blocks])


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    p, d = log_p.exp(), log_p - log_q
    far = p * d - p + log_q.exp()  # e⁻ᵈ could overflow
    return torch.where(d.abs() < 1, p * (d + torch.expm1(-d)), far).sum(dim=1).clamp(min=0.0)


def _predict(generator: Generator, rows: Sequence[Window], plan: DriftPlan) -> Iterator[Tensor]:
    """Log-probabilities [positions, vocab] float32 of one window after another.

    Batches depend only on plan and text: a window must be in the same batch in all cells.
    """
    forward = _predict_by_decode if plan.phase == "decode" else _predict_by_prefill
    window_bytes = (1 + max(len(row.given) for row in rows)) * plan.vocab * 4
    batch = max(1, min(plan.batch, _BATCH_BYTES // window_bytes))
    for start in range(0, len(rows), batch):
        for logits in forward(generator, rows[start : start + batch]):
            yield logits.float().log_softmax(dim=-1)


def _predict_by_decode(generator: Generator, rows: Sequence[Window]) -> Iterator[Tensor]:
    """The prompt's last token goes into the first decode step, so that no prediction comes from prefill."""
    longest = max(len(row.given) for row in rows)
    given = [(row.prompt[-1], *row.given, *row.given[-1:] * (longest - len(row.given))) for row in rows]
    logits = generator.forced([row.prompt[:-1] for row in rows], given)
    for row, own in zip(rows, logits, strict=True):
        yield own[1 : 1 + len(row.given)]


def _predict_by_prefill(generator: Generator, rows: Sequence[Window]) -> Iterator[Tensor]:
    tokens = [(*row.prompt, *row.given[:-1]) for row in rows]
    return generator.passed(tokens, [len(row.given) for row in rows])


def _answers(window: Window, log_p: Tensor, log_q: Tensor) -> Iterator[GradedAnswer]:
    given = torch.tensor(window.given)
    values = {
        KL: divergence_nats(log_p, log_q).mean(),
        "top1": (log_p.argmax(dim=1) == log_q.argmax(dim=1)).double().mean(),
        "nll_nats": -log_q.gather(1, given[:, None]).double().mean(),
    }
    why = "" if log_q.isfinite().all() else _NOT_FINITE
    for metric, value in values.items():
        known = None if why else float(value)
        yield GradedAnswer(
            question=window.question,
            metric=metric,
            value=known,
            weight=float(len(given)),
            why=why,
            cluster=window.document,
        )
