"""Every fault, many times: `python -m tests.faults [--kills N] [--seed N]` prints what became of each.

`--requests N` puts so many requests to one server instead, and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.faults.clients import left_by_clients
from tests.faults.disks import flipped_bits, full_disk, full_output, half_lines, read_only
from tests.faults.files import WRITERS, full_while_writing
from tests.faults.findings import Finding, summary
from tests.faults.kills import Undisturbed, killed_any_time, killed_while_writing
from tests.faults.others import WORKERS, bad_worker, clock_back, interrupted, two_sweeps
from tests.faults.real import oom_killed, really_full, really_read_only
from tests.faults.setups import killed_set_ups
from tests.faults.signals import ENDINGS, SUSPENDED, ended, stopped, suspended
from tests.faults.verbs import VERBS, killed_verb


def findings(folder: Path, kills: int, random: Random) -> Iterator[Finding]:
    """All faults, one after the other."""
    undisturbed = Undisturbed(folder / "undisturbed")
    yield killed_any_time(folder / "kills", undisturbed, random, kills)
    yield killed_while_writing(folder / "torn", undisturbed, random, kills)
    yield interrupted(folder / "interrupted", undisturbed)
    yield half_lines(folder / "half", undisturbed, random, kills)
    yield flipped_bits(folder / "bits", undisturbed, random, 10 * kills, kills // 30)
    yield full_disk(folder / "full", undisturbed, random, 20)
    yield from really_full(folder / "tmpfs")
    yield full_output(folder / "output")
    yield read_only(folder / "read-only")
    yield from really_read_only(folder / "mount")
    yield clock_back(folder / "clock", undisturbed)
    yield two_sweeps(folder / "two", undisturbed)
    for script in WORKERS:
        yield bad_worker(folder / script, script)
    yield from oom_killed(folder / "oom")
    yield from real_engine(folder, kills // 5, random)


def real_engine(folder: Path, times: int, random: Random) -> Iterator[Finding]:
    """Faults of commands that really load and compute."""
    for number, verb in enumerate(VERBS):
        yield killed_verb(folder / f"verb-{number}", verb, random, times)
    for number, verb in enumerate(WRITERS):
        yield full_while_writing(folder / f"full-{number}", verb, random, times)
    for number, fault in enumerate(ENDINGS):
        yield ended(folder / f"ended-{number}", fault, random, times)
    yield stopped(folder / "stopped", random, times)
    for number, whom in enumerate(SUSPENDED):
        yield suspended(folder / f"suspended-{number}", whom)
    yield killed_set_ups(folder / "set-ups", random, times)
    yield left_by_clients(folder / "clients", random, 50 * times)


def _asked_for(asked: argparse.Namespace, folder: Path, random: Random) -> Iterator[Finding]:
    if asked.requests is None:
        return findings(folder, asked.kills, random)
    return iter([left_by_clients(folder, random, asked.requests)])


def main() -> int:
    """Exit code 1 where anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=150, help="of each kind")
    parser.add_argument("--requests", type=int, help="to one server, some of which are left, instead of all faults")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    memory = Path("/dev/shm")
    found = []
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for finding in _asked_for(asked, Path(folder), Random(asked.seed)):
            print(f"{finding.fault}: {finding.happened}", file=sys.stderr, flush=True)
            found.append(finding)
    print(summary(found))
    return 0 if all(finding.holds for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main())
