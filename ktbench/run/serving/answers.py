"""Whether answers that were given among others are those that the engine gives to one request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from ktbench.engine.serving.requests import ServeRequest, ServingEngine

Ids = tuple[int, ...]
# Two logits with errors of so many standard deviations each may change places.
_DEVIATIONS = 4.0
_SAMPLED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """One request of a replay: its number, its prompt, and the answer that it got."""

    number: int
    prompt: Ids
    answer: Ids


def sampled(answers: Sequence[tuple[Ids, Ids]], count: int = _SAMPLED) -> tuple[Answered, ...]:
    """So many requests of a replay, evenly spread from the first to the last."""
    last, most = len(answers) - 1, min(count, len(answers))
    numbers = dict.fromkeys(round(last * i / max(most - 1, 1)) for i in range(most))
    return tuple(Answered(number=number, prompt=answers[number][0], answer=answers[number][1]) for number in numbers)


def alone(
    engine: ServingEngine, prompt: Ids, max_new: int, logprobs: int | None = None
) -> tuple[Ids, dict[int, float]]:
    """The answer to a prompt that is the only one, and the log-probabilities before its last token, by token.

    Raises RuntimeError for a request that fails.
    """
    engine.submit(ServeRequest(key="alone", prompt=prompt, max_new=max_new, logprobs=logprobs))
    answer: list[int] = []
    top: dict[int, float] = {}
    while True:
        for event in engine.step():
            if event.token is not None:
                answer.append(event.token)
                top = dict(event.top)
            if event.finish in ("error", "cancelled"):
                raise RuntimeError(f"a request alone ended by {event.finish}: {event.why}")
            if event.finish is not None:
                return tuple(answer), top


def difference(engine: ServingEngine, seen: Answered, tolerance: float, vocab: int) -> str:
    """Why an answer cannot be that of the same model; empty where it can.

    Where it parts from the answer to the same request alone, both tokens must be about equally likely there: logits
    that carry a relative error of `tolerance` each may change places.
    """
    expected, _ = alone(engine, seen.prompt, len(seen.answer))
    at = next((i for i, pair in enumerate(zip(seen.answer, expected, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return ""
    _, top = alone(engine, (*seen.prompt, *expected[:at]), 1, logprobs=vocab)
    gap, allowed = _gap(top, seen.answer[at]), _DEVIATIONS * sqrt(2) * tolerance * _deviation(list(top.values()))
    if gap <= allowed:
        return ""
    return (
        f"request {seen.number}: token {at + 1} of its answer is {seen.answer[at]}, alone it is {expected[at]}, "
        f"{gap:.3g} nats likelier; rounding allows {allowed:.3g}"
    )


def _gap(top: dict[int, float], token: int) -> float:
    """Nats between the likeliest token and another one; infinite where that is not among those listed."""
    return max(top.values()) - top[token] if token in top else float("inf")


def _deviation(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
