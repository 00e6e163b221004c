"""Whether answers given alongside others equal those that the engine gives to a single request.

Letters: T tokens of an answer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.serving.requests import Sampling, ServeRequest, ServingEngine

Ids = tuple[int, ...]
Logits = NDArray[np.float32]
# Two numbers with errors of this many standard deviations each may change places.
_DEVIATIONS = 4.0
_SAMPLED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedRequest:
    """One request of a replay: number, prompt, answer, and the logits [T, V] from which each token was chosen.

    Empty logits [0] for an engine that returns none. `sampling` is how tokens were to be chosen.
    """

    number: int
    prompt: Ids
    answer: Ids
    logits: Logits
    sampling: Sampling = field(default_factory=Sampling)


def sample_numbers(requests: int) -> tuple[int, ...]:
    """The numbers of this many requests, evenly spread from the first to the last."""
    most = min(_SAMPLED, requests)
    return tuple(dict.fromkeys(round((requests - 1) * i / max(most - 1, 1)) for i in range(most)))


def alone(engine: ServingEngine, prompt: Ids, max_new: int) -> Ids:
    """The answer to a single prompt. Raises RuntimeError for a request that fails."""
    return _alone(engine, ServeRequest(key="alone", prompt=prompt, max_new=max_new))[0]


def logits_alone(engine: ServingEngine, prompt: Ids, answer: Ids) -> Logits:
    """The logits [T, V] before each token of an answer to a single prompt, computed as a whole.

    Raises RuntimeError for a request that fails.
    """
    request = ServeRequest(key="alone", prompt=prompt, max_new=len(answer), forced=answer, logits=True)
    return stack_logits(_alone(engine, request)[1])


def stack_logits(rows: Sequence[Logits | None]) -> Logits:
    """Logits [T, V] stacked from those of each token; empty [0] without any."""
    known = [row for row in rows if row is not None]
    return np.stack(known) if known else np.empty(0, np.float32)


def _alone(engine: ServingEngine, request: ServeRequest) -> tuple[Ids, list[Logits | None]]:
    engine.submit(request)
    answer: list[int] = []
    logits: list[Logits | None] = []
    while True:
        for event in engine.step():
            if event.token is not None:
                answer.append(event.token)
                logits.append(event.logits)
            if event.finish in ("error", "cancelled"):
                raise RuntimeError(f"a request alone ended by {event.finish}: {event.why}")
            if event.finish is not None:
                return tuple(answer), logits


def difference(seen: ReplayedRequest, expected: Logits, tolerance: float) -> str:
    """Why an answer cannot come from the model whose logits for it, as a single request, are `expected` [T, V].

    Empty if it can. Every token must be about as likely as the most likely one: logits with a relative error of
    `tolerance` each may change places. A sampled token must be the one that its seed draws from the logits from which
    it was chosen. These logits must also equal the expected ones within such errors, since the same token may be the
    most likely one after quite different prompts.
    """
    allowed = _DEVIATIONS * sqrt(2) * tolerance
    if seen.sampling.temperature:
        return _drawn_otherwise(seen) or _logits_differ(seen, expected, allowed)
    for at, (token, row) in enumerate(zip(seen.answer, expected, strict=True)):
        gap, most = float(row.max() - row[token]), allowed * float(row.std())
        if gap > most:
            return (
                f"request {seen.number}: token {at + 1} of its answer is {token}, alone it is {row.argmax()}, "
                f"{gap:.3g} nats likelier; rounding allows {most:.3g}"
            )
    return _logits_differ(seen, expected, allowed)


def _drawn_otherwise(seen: ReplayedRequest) -> str:
    """The token of a sampled answer that is not what its seed draws; empty if all are."""
    from torch import from_numpy

    from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser

    chooser, answer = TokenChooser(), SampledAnswer(seen.sampling, seen.prompt)
    for at, (token, row) in enumerate(zip(seen.answer, seen.logits, strict=True)):
        (drawn,) = chooser.choose(from_numpy(row)[None], [answer])
        if drawn != token:
            return f"request {seen.number}: token {at + 1} of its answer is {token}, its seed draws {drawn}"
    return ""


def _logits_differ(seen: ReplayedRequest, expected: Logits, allowed: float) -> str:
    error = relative_error(seen.logits, expected)
    if error <= allowed:
        return ""
    return (
        f"request {seen.number}: the logits of its answer differ from those alone by {error:.3g} of their size, "
        f"rounding allows {allowed:.3g}"
    )


def relative_error(actual: Logits, expected: Logits) -> float:
    """Median over tokens of the Euclidean norm of the difference of logits [T, V], over that of the expected ones.

    The median, because rounding that routes one token to another expert says nothing about the others.
    """
    errors = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(np.median(errors))
