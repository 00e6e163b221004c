"""Correctness: outputs against the float32 reference, how many are compared, and the check itself against mutants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.protocol import ExpertsObservation, Survey
from ktbench.spec.record import Compared, Outcome

Reference = Callable[[ExpertsObservation], NDArray[np.float32]]

# Four standard deviations of the error of a single token, over the error of many: 0.0021 and 0.022 for int8 activations
# per token (float64 arithmetic, experts of 2048 x 768, top-8).
_SCATTER = 4 * 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """Outcome OK, WRONG or VACUOUS; `error` is the largest relative error, None if it is not a number."""

    outcome: Outcome
    why: str = ""
    error: float | None = None


def relative_error(output: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """Frobenius norm of the difference over that of the truth; infinite if the output is not finite."""
    if not np.isfinite(output).all():
        return float("inf")
    scale, distance = _norm(truth), _norm(output.astype(np.float64) - truth)
    return distance / scale if scale else (0.0 if distance == 0 else float("inf"))


def _norm(values: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """Frobenius norm without BLAS, whose threads would spin on the cores that are measured next."""
    return float(np.sqrt(np.square(values, dtype=np.float64).sum()))


def largest_error(tolerance: float, tokens: int) -> float:
    """The largest error that passes for this many tokens, where `tolerance` applies to many tokens."""
    return tolerance * (1 + _SCATTER / math.sqrt(tokens))


def check(observations: Sequence[ExpertsObservation], reference: Reference, tolerance: float) -> CheckResult:
    """Compares the output of each experts call with the reference on the same inputs."""
    if not observations:
        return CheckResult(outcome=Outcome.VACUOUS, why="no experts call was observed")
    worst = 0.0
    for seen in observations:
        error = relative_error(seen.output, reference(seen))
        limit = largest_error(tolerance, len(seen.output))
        if not error <= limit:
            return _wrong(seen, error, limit)
        worst = max(worst, error)
    return CheckResult(outcome=Outcome.OK, error=worst)


def check_rows(seen: ExpertsObservation, truth: NDArray[np.float32], tolerance: float) -> str:
    """Why an output differs from `truth` [T, hidden] in some token; empty if it agrees in each."""
    limit = largest_error(tolerance, 1)
    for row, (output, right) in enumerate(zip(seen.output, truth, strict=True)):
        error = relative_error(output, right)
        if not error <= limit:
            experts = ", ".join(str(expert) for expert in seen.ids[row].tolist())
            return f"{_differs(seen, error, limit)} (a token of experts {experts})"
    return ""


def _wrong(seen: ExpertsObservation, error: float, limit: float) -> CheckResult:
    why, finite = _differs(seen, error, limit), bool(np.isfinite(error))
    return CheckResult(outcome=Outcome.WRONG, why=why, error=error if finite else None)


def _differs(seen: ExpertsObservation, error: float, limit: float) -> str:
    problem = f"relative error {error:.3g}" if np.isfinite(error) else "output is not finite"
    return f"layer {seen.layer}: {problem}, tolerance {limit:.3g}"


def check_the_check(observations: Sequence[ExpertsObservation], reference: Reference, tolerance: float) -> str:
    """A mutant that `check` would pass on any of these observations; empty if it rejects all of them.

    A call without experts, all of which are deferred, is right as zeros, of which there are no mutants.
    """
    for seen in observations:
        if not (seen.ids >= 0).any():
            continue
        truth = reference(seen)
        for name, mutant in mutants(seen, truth, reference):
            if relative_error(mutant, truth) <= largest_error(tolerance, len(truth)):
                return f"layer {seen.layer}: the check would pass {name} (tolerance {tolerance:g})"
    return ""


def mutants(
    seen: ExpertsObservation, truth: NDArray[np.float32], reference: Reference
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Wrong outputs, with their names, that the check must reject."""
    seen = replace(seen, gates=np.where(seen.ids < 0, 0, seen.gates))
    weights = np.abs(seen.gates).sum(axis=0)
    by_weight = np.array([column for column in np.argsort(weights) if weights[column]])  # some may have no experts
    yield "zeros", np.zeros_like(truth)
    if len(truth) > 1:
        yield "another token's output", np.roll(truth, 1, axis=0)
    dropped = seen.gates.copy()
    dropped[:, by_weight[len(by_weight) // 2]] = 0
    yield "a dropped expert", reference(replace(seen, gates=dropped))
    if _distinct(seen, by_weight):
        swapped = seen.ids.copy()
        swapped[:, by_weight[[0, -1]]] = swapped[:, by_weight[[-1, 0]]]
        yield "two swapped experts", reference(replace(seen, ids=swapped))


def _distinct(seen: ExpertsObservation, by_weight: NDArray[np.intp]) -> bool:
    """Swapping two experts has an effect only if their gate weights differ."""
    light, heavy = (np.abs(seen.gates[:, by_weight[i]]).sum() for i in (0, -1))
    return bool(heavy > 1.2 * light)


def stale(timed: NDArray[np.float32], repeated: NDArray[np.float32], tolerance: float) -> str:
    """Why the timed step cannot have computed the same as its observed repetition; empty if they agree."""
    error = relative_error(timed, repeated)
    if error <= tolerance:
        return ""
    return f"the timed step's logits differ from its repetition: relative error {error:.3g}, tolerance {tolerance:g}"


# One in this many of the calls observed in a step is compared, in all trials of a cell but the first.
_CALLS_APART = 4


def drawn_calls(observations: Sequence[ExpertsObservation], draw: Random) -> tuple[ExpertsObservation, ...]:
    """A quarter of the calls of an observed step, at least one."""
    return tuple(draw.sample(observations, math.ceil(len(observations) / _CALLS_APART)))


# Trials of a cell that are always compared, and the chance of each later one: comparing one step of eight in every
# round took 8 % of a sweep of 17 rounds.
ALWAYS_COMPARED = 6
_CHANCE = 1 / 5

# At most this many experts of all layers are compared; if there are more, those of a sample of the layers.
MOST_EXPERTS = 4096


@dataclass(kw_only=True)
class Coverage:
    """What was compared so far of a cell with `steps` steps. `draw` gives numbers that no operator can predict."""

    steps: int
    draw: Random
    _unseen: list[int] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _met: set[tuple[int, int]] = field(default_factory=set)
    _trials: int = 0
    _units: int = 0
    _of_experts: int = 0

    def next_step(self) -> int:
        """The step that is compared in the next trial: each once before any is repeated."""
        if not self._unseen:
            self._unseen = self.draw.sample(range(self.steps), self.steps)
        return self._unseen[-1]

    def is_due(self) -> bool:
        """Whether a timed trial is compared: each of the first ones, and later ones by chance."""
        self._trials += 1
        return self._trials <= ALWAYS_COMPARED or self.draw.random() < _CHANCE

    def add_step(self, step: int) -> None:
        """Note that a step was compared."""
        self._seen.add(step)
        self._unseen.remove(step)

    def next_units(self, plan: Survey, rounds: int) -> Sequence[tuple[int, int]]:
        """The calls of a survey for this trial; the first `rounds` trials together run all of them."""
        self._of_experts = plan.of_experts
        left = plan.units[self._units :]
        chosen = left[: math.ceil(len(left) / max(1, rounds + 1 - self._trials))]
        self._units += len(chosen)
        return chosen

    def add_experts(self, experts: frozenset[tuple[int, int]]) -> None:
        """Note that experts were compared."""
        self._met |= experts

    @property
    def compared(self) -> Compared:
        """What was compared so far in this worker."""
        return Compared(experts=len(self._met), of_experts=self._of_experts, steps=len(self._seen), of_steps=self.steps)
