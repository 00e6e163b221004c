"""Every fault, many times: `python -m tests.faults [--kills N] [--seed N] [--only NAME,...]` says what became.

`--requests N` puts so many requests to one server instead, and nothing else.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from tests.faults.clients import left_by_clients
from tests.faults.disks import flipped_bits, full_disk, full_output, half_lines, read_only
from tests.faults.files import WRITERS, full_while_writing
from tests.faults.findings import Finding, summary
from tests.faults.kills import Undisturbed, killed_any_time, killed_while_writing
from tests.faults.others import WORKERS, bad_worker, clock_back, interrupted, two_sweeps
from tests.faults.real import oom_killed, really_full, really_read_only
from tests.faults.servers import killed_servers
from tests.faults.setups import killed_set_ups
from tests.faults.signals import ENDINGS, SUSPENDED, child_stopped, ended, stopped, suspended
from tests.faults.verbs import VERBS, Verb, killed_verb


@dataclass(frozen=True, kw_only=True)
class Bed:
    """How often each fault is done at least, by which chance, and the scripted sweep left alone in a folder.

    No command that really computes is killed after `until`, by the monotonic clock. One server gets the `requests`.
    """

    folder: Path
    kills: int
    random: Random
    until: float
    requests: int

    @property
    def few(self) -> int:
        """How often it is done to commands that really load and compute."""
        return max(1, self.kills // 5)

    @cached_property
    def undisturbed(self) -> Undisturbed:
        """The scripted sweep left alone."""
        return Undisturbed(self.folder / "undisturbed")


Fault = Callable[[Path, Bed], Iterator[Finding]]


def _one(hurt: Callable[[Path, Bed], Finding]) -> Fault:
    def found(folder: Path, bed: Bed) -> Iterator[Finding]:
        yield hurt(folder, bed)

    return found


def _workers(folder: Path, bed: Bed) -> Iterator[Finding]:
    for script in WORKERS:
        yield bad_worker(folder / script, script)


def _killed(verb: Verb) -> Fault:
    return _one(lambda folder, bed: killed_verb(folder, verb, bed.random, bed.few, bed.until))


def _full(verb: Verb) -> Fault:
    return _one(lambda folder, bed: full_while_writing(folder, verb, bed.random, bed.few))


def _ended(fault: str) -> Fault:
    return _one(lambda folder, bed: ended(folder, fault, bed.random, bed.few))


def _suspended(whom: str) -> Fault:
    return _one(lambda folder, _: suspended(folder, whom))


def _child_stopped(verb: Verb) -> Fault:
    return _one(lambda folder, _: child_stopped(folder, verb))


FAULTS: Mapping[str, Fault] = {
    "killed": _one(lambda folder, bed: killed_any_time(folder, bed.undisturbed, bed.random, bed.kills)),
    "torn": _one(lambda folder, bed: killed_while_writing(folder, bed.undisturbed, bed.random, bed.kills)),
    "interrupted": _one(lambda folder, bed: interrupted(folder, bed.undisturbed)),
    "half-lines": _one(lambda folder, bed: half_lines(folder, bed.undisturbed, bed.random, bed.kills)),
    "bits": _one(
        lambda folder, bed: flipped_bits(folder, bed.undisturbed, bed.random, 10 * bed.kills, bed.kills // 30)
    ),
    "full": _one(lambda folder, bed: full_disk(folder, bed.undisturbed, bed.random, 20)),
    "full-file-system": lambda folder, _: really_full(folder),
    "full-output": _one(lambda folder, _: full_output(folder)),
    "read-only": _one(lambda folder, _: read_only(folder)),
    "read-only-file-system": lambda folder, _: really_read_only(folder),
    "clock": _one(lambda folder, bed: clock_back(folder, bed.undisturbed)),
    "two-sweeps": _one(lambda folder, bed: two_sweeps(folder, bed.undisturbed)),
    "workers": _workers,
    "oom": lambda folder, _: oom_killed(folder),
    **{f"killed-{verb.name}": _killed(verb) for verb in VERBS},
    "killed-serve": _one(lambda folder, bed: killed_servers(folder, bed.random, bed.few, bed.until)),
    "killed-bootstrap": _one(lambda folder, bed: killed_set_ups(folder, bed.random, bed.few, bed.until)),
    **{f"full-{verb.name}": _full(verb) for verb in WRITERS},
    **{f"ended-{number}": _ended(fault) for number, fault in enumerate(ENDINGS)},
    "stopped": _one(lambda folder, bed: stopped(folder, bed.random, bed.few)),
    **{f"suspended-{number}": _suspended(whom) for number, whom in enumerate(SUSPENDED)},
    **{f"stopped-{verb.name}": _child_stopped(verb) for verb in VERBS if verb.name in ("eval", "export", "record")},
    "clients": _one(lambda folder, bed: left_by_clients(folder, bed.random, bed.requests)),
}


def main() -> int:
    """Exit code 1 where anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=150, help="of each kind; a fifth of it of commands that compute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="after which no command that computes is killed"
    )
    parser.add_argument("--only", default=",".join(FAULTS), help="some of them, with commas between")
    parser.add_argument("--requests", type=int, help="to one server, some of which are left, instead of all faults")
    asked = parser.parse_args()
    names = asked.only.split(",") if asked.requests is None else ["clients"]
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"--only={unknown[0]}: allowed are {', '.join(FAULTS)}")
    memory, random, found = Path("/dev/shm"), Random(asked.seed), []
    until = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        requests = asked.requests or 10 * asked.kills
        bed = Bed(folder=Path(folder), kills=asked.kills, random=random, until=until, requests=requests)
        for name in names:
            for finding in FAULTS[name](Path(folder) / name, bed):
                print(f"{finding.fault}: {finding.happened}", file=sys.stderr, flush=True)
                found.append(finding)
    print(summary(found))
    return 0 if all(finding.holds for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main())
