"""The session: groups of calls counted, then recorded, or compared with what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ktbench import _kernels
from tests.instructions import reference
from tests.instructions.calls import ENGINE, calls_of, choices, fixed_crossovers
from tests.instructions.counter import CannotCount, Counter, compiler_of, open_counter


def carry_out(groups: Sequence[str], *, write: bool) -> bool:
    """Count groups and print what came of it; False where a call has grown too much."""
    began = perf_counter()
    try:
        with open_counter(_kernels.__file__) as counting, fixed_crossovers():
            passed = [_carried_out(group, counting, write) for group in groups]
    except CannotCount as error:
        print(f"skipped: {error}")
        return True
    print(f"{perf_counter() - began:.0f} s")
    return all(passed)


def _carried_out(group: str, counting: Counter, write: bool) -> bool:
    if reason := _kernels.grants().get(group, ""):
        print(f"{group}: skipped: {reason}")
        return True
    calls = {one.name: counting.count(one.call, one.prepare) for one in calls_of(group)}
    compiler = compiler_of(_kernels.__file__)
    counts = reference.Counts(compiler=compiler, machine=choices() if group == ENGINE else [], calls=calls)
    if write:
        reference.write(group, counts)
        print(f"{group}: {len(calls)} calls recorded, {sum(calls.values()):,} instructions, {compiler}")
        return True
    return _judged(group, counts)


def _judged(group: str, counts: reference.Counts) -> bool:
    recorded = reference.read(group)
    if recorded is None:
        print(f"{group}: nothing is recorded: nox -s instructions -- --write --only {group}")
        return True
    changed = list(reference.changes(recorded.calls, counts.calls))
    shown, too_large = [one for one in changed if one.is_shown], [one for one in changed if one.is_too_large]
    reason = reference.not_judged(recorded, counts)
    print(f"{group}: {len(counts.calls)} calls counted, {len(changed)} differ{'; ' + reason if reason else ''}")
    for one in shown:
        print(f"  {one}")
    return bool(reason) or not too_large
