"""`compare`: two runs, or the runs of two commits, joined cell by cell."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.comparison_table import comparison_markdown, write_comparison
from ktbench.report.table import notes_of
from ktbench.report.text import some
from ktbench.resources import checkout, in_checkout
from ktbench.results import read_run
from ktbench.results.between_runs import require_one_machine
from ktbench.results.comparison import TOLERANCE, Comparison, compare_runs
from ktbench.results.find import Origin, find_run, origins_of, read_origin
from ktbench.spec.errors import FAILED, RequestError, instead, one_line

SLOWER = 3
_KEYS = ("different_machines", "tolerance")
_REGRESS = f"or measure both with: {in_checkout('nox -s regress -- A B [overrides]')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRequest:
    """Which runs or commits to compare, and how. `tolerance` is the relative change that counts as none."""

    before: str
    after: str
    different_machines: bool
    tolerance: float


def run(overrides: Sequence[str]) -> int:
    """Print how B compares with A and write it beside the report of B.

    Exit code 4 where A has a time or answers of a cell and B has neither: WRONG, CRASHED, IDLE, IMPLAUSIBLE, missing.
    Else 3 where a cell is slower, else 4 where there is no verdict on one: no gate may take that for 0. Raises
    RequestError for runs that are not there, that are of different machines, or that have no cell in common.
    """
    request = read_comparison(overrides)
    before, after = (read_run(origin.folder) for origin in _chosen(request))
    if not request.different_machines:
        require_one_machine(before, after)
    comparison = compare_runs(before, after, request.tolerance, different_machines=request.different_machines)
    if not comparison.cells:
        counts = " and ".join(f"{len(one.header.cells)} of {one.folder.name}" for one in (before, after))
        raise RequestError(f"compare: no cell is in both runs ({counts}): model, workload and arms have to be the same")
    written = write_comparison(comparison)
    print(comparison_markdown(comparison))
    print("\n".join(f"wrote {path}" for path in written))
    return _exit_code(comparison)


def _exit_code(comparison: Comparison) -> int:
    if comparison.lost:
        _complain("timed or answered in A alone", comparison.lost)
        return FAILED
    if comparison.is_worse:
        return SLOWER
    if comparison.unjudged:
        _complain("no verdict", comparison.unjudged)
        return FAILED
    if comparison.is_empty:
        print("ktbench: compare: A has neither times nor graded answers: nothing is judged", file=sys.stderr)
        return FAILED
    return 0


def _complain(what: str, reasons: Mapping[str, str]) -> None:
    """One line; `reasons` are by the name of a cell."""
    print(one_line(f"ktbench: compare: {what}: {some(notes_of(reasons.items()))}"), file=sys.stderr)


def read_comparison(words: Sequence[str]) -> ComparisonRequest:
    """The request in the words of a command line. Raises RequestError in one line for an invalid one."""
    names = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if unknown := next((key for key in given if key not in _KEYS), None):
        raise RequestError(f"compare {unknown}={given[unknown]}: unknown key{instead(unknown, _KEYS)}")
    if len(names) != 2:
        raise RequestError(f"compare: name two runs (folder, name under runs/, latest) or commits, not {len(names)}")
    return ComparisonRequest(
        before=names[0],
        after=names[1],
        different_machines=_flag(given.get("different_machines", "false")),
        tolerance=_tolerance(given.get("tolerance", str(TOLERANCE))),
    )


def _flag(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise RequestError(f"compare different_machines={word}: allowed are true and false")
    return word.lower() == "true"


def _tolerance(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise RequestError(f"compare tolerance={word}: must be a number from 0 up to 1, such as 0.03 for 3 %")
    return value


def _chosen(request: ComparisonRequest) -> tuple[Origin, Origin]:
    """Both runs. For a commit it is the newest run of an ablation that both sides have runs of."""
    before, after = _candidates(request.before), _candidates(request.after)
    if len(before) == len(after) == 1:
        return before[0], after[0]
    alike = ((mine, theirs) for theirs in after for mine in before if mine.ablation == theirs.ablation)
    if found := next(alike, None):
        return found
    swept = [", ".join(dict.fromkeys(one.ablation for one in side)) for side in (before, after)]
    raise RequestError(
        f"compare: runs of {request.before} swept {swept[0]}, those of {request.after} {swept[1]}; name two runs, "
        f"{_REGRESS}"
    )


def _candidates(name: str) -> list[Origin]:
    """The run of that name, or the runs of that commit without changes on top of it, newest first."""
    try:
        return [read_origin(find_run(name))]
    except RequestError as no_run:
        commit = _commit(name)
        if commit is None:
            raise no_run from None
    found = origins_of(commit)
    clean = [origin for origin in found if not origin.dirty]
    if not clean:
        changed = f" but {found[0].folder.name}, which has changes on top of it" if found else ""
        raise RequestError(f"compare {name}: no run is of commit {commit[:12]}{changed}; name another, {_REGRESS}")
    return clean


def _commit(name: str) -> str | None:
    """The commit that a name stands for in the checkout of this code; None where there is none.

    Without a checkout, hexadecimal digits are taken for the beginning of a commit.
    """
    if not (checkout() / ".git").exists():
        return name if re.fullmatch("[0-9a-f]{7,40}", name) else None
    command = ["git", "-C", str(checkout()), "rev-parse", "--verify", "--quiet", "--end-of-options"]
    try:
        done = subprocess.run([*command, f"{name}^{{commit}}"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
