"""Two builds of ktbench that take turns, a round at a time, each going on with a run of its own: A B, B A, A B."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ROUNDS = 12
_COUNT, _LEAST = "measure.max_rounds", "measure.min_rounds"
_UNLIMITED = "measure.max_minutes=1440"  # the rounds are what both sides get alike
# What we set ourselves to keep the two apart.
_OURS = ("run_name", "resume", "resume_changed", _LEAST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One round of one side, 0 for A and 1 for B: what to call `python -m ktbench` with."""

    side: int
    round: int
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternation:
    """Two commits and what both measure, `rounds` times each, into the runs of these names."""

    commits: tuple[str, str]
    overrides: tuple[str, ...]
    rounds: int
    runs: tuple[str, str]

    def turns(self) -> Iterator[Turn]:
        """All turns in order; odd rounds walk back, so that a drift of the machine falls on both alike."""
        for number in range(self.rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                yield Turn(side=side, round=number, words=self._words(side, number))

    def _words(self, side: int, number: int) -> tuple[str, ...]:
        """The first round begins the run, each other one resumes it for one round more."""
        verb = "sweep" if any(word.startswith("+ablation=") for word in self.overrides) else "run"
        where = f"{'resume' if number else 'run_name'}={self.runs[side]}"
        return verb, _UNLIMITED, *self.overrides, where, f"{_LEAST}={number + 1}", f"{_COUNT}={number + 1}"


def read_alternation(words: Sequence[str], stamp: str) -> Alternation:
    """What `A B [overrides]` ask for; `measure.max_rounds=N` among them is how many rounds each side gets.

    `stamp` tells the runs from those of another time. Raises ValueError in one line for anything else.
    """
    commits = [word for word in words if "=" not in word]
    if len(commits) != 2:
        raise ValueError(f"regress: name two commits, then overrides: `-- A B [overrides]`, not {len(commits)}")
    given = {word.lstrip("+~").partition("=")[0]: word for word in words if "=" in word}
    if taken := next((given[key] for key in _OURS if key in given), None):
        raise ValueError(f"regress {taken}: is set round by round, leave it out; {_COUNT}=N says how many rounds")
    return Alternation(
        commits=(commits[0], commits[1]),
        overrides=tuple(word for key, word in given.items() if key != _COUNT),
        rounds=_rounds(given.get(_COUNT, f"{_COUNT}={_ROUNDS}")),
        runs=(f"regress-{stamp}-a", f"regress-{stamp}-b"),
    )


def _rounds(word: str) -> int:
    text = word.partition("=")[2]
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"regress {word}: must be a whole number from 2; an interval of 95 % needs 6")
    return int(text)
