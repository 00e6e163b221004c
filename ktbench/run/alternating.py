"""Alternates rounds of two builds of ktbench, each resuming its own run, in random order: A B, B A, B A, A B."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ktbench.results import LOG_NAME, Run, StoreError, read_run
from ktbench.results.find import RUNS
from ktbench.spec.cells import drawn_order
from ktbench.spec.record import Outcome

_ROUNDS = 12
_COUNT, _LEAST, _TOLERANCE = "measure.max_rounds", "measure.min_rounds", "tolerance"
_UNLIMITED = "measure.max_minutes=1440"  # both sides get the same number of rounds
# Keys that are set for each round.
_RESERVED = ("run_name", "resume_changed", _LEAST, "measure.reload_blocks")


@dataclass(frozen=True, kw_only=True, slots=True)
class SideRound:
    """One round of one side, 0 for A and 1 for B: the arguments of `python -m ktbench`."""

    side: int
    round: int
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternation:
    """Two commits and the overrides that both measure in `rounds` rounds, into runs with `stamp` in their names.

    `tolerance` is the word `tolerance=…` for `compare`, if any.
    """

    commits: tuple[str, str]
    overrides: tuple[str, ...]
    rounds: int
    stamp: str
    tolerance: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[str, str]:
        """Names of the runs of A and B."""
        return f"regress-{self.stamp}-a", f"regress-{self.stamp}-b"

    @property
    def is_begun(self) -> bool:
        """Whether a run of either side exists to be resumed."""
        return any((RUNS / name / LOG_NAME).is_file() for name in self.runs)

    @property
    def command(self) -> str:
        """The arguments that resume after an interruption."""
        words = [*self.commits, *self.overrides, *self.tolerance]
        return shlex.join([*words, f"{_COUNT}={self.rounds}", f"resume={self.stamp}"])

    def missing_rounds(self) -> Iterator[SideRound]:
        """The missing rounds in order; the first side is drawn, each once in two rounds, the same when resumed.

        The runs are read once, before the first.
        """
        kept = [_read(name) for name in self.runs]
        lacking = [_unfinished_rounds(run, self.rounds) for run in kept]
        for number in range(self.rounds):
            for side in drawn_order(2, number, self.stamp):
                if number in lacking[side]:
                    words = self._words(side, number, begins=kept[side] is None and number == 0)
                    yield SideRound(side=side, round=number, words=words)

    def _words(self, side: int, number: int, *, begins: bool) -> tuple[str, ...]:
        """The first round starts the run, each later one resumes it for one more round."""
        verb = "sweep" if any(word.startswith("+ablation=") for word in self.overrides) else "run"
        where = f"{'run_name' if begins else 'resume'}={self.runs[side]}"
        return verb, _UNLIMITED, *self.overrides, where, f"{_LEAST}={number + 1}", f"{_COUNT}={number + 1}"


def read_alternation(words: Sequence[str], stamp: str) -> Alternation:
    """The alternation of `A B [overrides]`; `measure.max_rounds=N` sets the number of rounds of each side.

    `tolerance=T` is for the comparison.

    `stamp` makes names of runs unique; `resume=STAMP` resumes those of another stamp. Raises ValueError in one line for
    anything else.
    """
    commits = [word for word in words if "=" not in word]
    if len(commits) != 2:
        raise ValueError(f"regress: name two commits, then overrides: `-- A B [overrides]`, not {len(commits)}")
    given = {word.lstrip("+~").partition("=")[0]: word for word in words if "=" in word}
    if taken := next((given[key] for key in _RESERVED if key in given), None):
        raise ValueError(f"regress {taken}: is set for each round, leave it out; {_COUNT}=N sets the number of rounds")
    again = given.pop("resume", "")
    alternation = Alternation(
        commits=(commits[0], commits[1]),
        overrides=tuple(word for key, word in given.items() if key not in (_COUNT, _TOLERANCE)),
        rounds=_rounds(given.get(_COUNT, f"{_COUNT}={_ROUNDS}")),
        stamp=again.partition("=")[2] or stamp,
        tolerance=tuple(word for key, word in given.items() if key == _TOLERANCE),
    )
    if again and not alternation.is_begun:
        raise ValueError(f"regress {again}: there is no run {RUNS / alternation.runs[0]}")
    return alternation


def _rounds(word: str) -> int:
    text = word.partition("=")[2]
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"regress {word}: must be a whole number from 2; an interval of 95 % needs 6")
    return int(text)


def _read(name: str) -> Run | None:
    """The run of a side; None before its plan is written."""
    try:
        return read_run(RUNS / name)
    except StoreError:
        return None


def _unfinished_rounds(run: Run | None, rounds: int) -> Collection[int]:
    """Rounds in which a cell must still be timed.

    Simulated and failed cells need none: the next round that runs retries a failed cell in all rounds. If no other cell
    lacks a round, that is the last one.
    """
    if run is None:
        return range(rounds)
    last = {record.cell: record for record in run.records}
    failed = {key for key, record in last.items() if not record.outcome.timed}
    settled = failed | {key for key, record in last.items() if record.provenance == "simulated"}
    timed = {where for where, record in run.latest().items() if record.outcome.timed}
    planned = {cell.key for cell in run.header.cells} - settled
    lacking = [number for number in range(rounds) if any((key, number) not in timed for key in planned)]
    retried = any(last[key].outcome is not Outcome.UNSUPPORTED for key in failed)
    return lacking or [rounds - 1] * retried
