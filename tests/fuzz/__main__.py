"""Inputs of all targets in turns, until the time or their number is reached: `python -m tests.fuzz`.

A failing input is made as small as hypothesis can make it and kept in `tests/fuzz/cases`, which the tests carry out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.forks import Fault, Server, fault_of, serving
from tests.fuzz.targets import TARGETS

CASES = Path(__file__).parent / "cases"
_BATCH = 25
_SHRINK_S = 60.0  # for one failing input


class _Failed(Exception):
    """An input with a fault that is not known yet."""


class _Batch:
    """Some inputs of one target; the smallest that failed is `smallest`, with its fault."""

    def __init__(self, name: str, server: Server, known: set[str], until: float) -> None:
        self._name, self._server, self._known, self._until = name, server, known, until
        self.count, self._failed_at = 0, 0.0
        self.smallest: tuple[Any, Fault] | None = None

    def run(self, number: int, most: int) -> None:
        """Carry out up to so many inputs, and shrink the first that fails."""

        @seed(number)
        @settings(
            max_examples=most,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @given(TARGETS[self._name].inputs())
        def attempt(data: Any) -> None:
            self._attempt(data)

        try:
            attempt()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or self.smallest is None:
                raise

    def _attempt(self, data: Any) -> None:
        now = time.monotonic()
        if (self.smallest is None and now > self._until) or (self.smallest and now > self._failed_at + _SHRINK_S):
            return
        fault = fault_of(self._server.attempt(self._name, data))
        self.count += self.smallest is None
        if fault is None or f"{self._name}: {fault.kind}" in self._known:
            return
        if self.smallest is None:
            self._failed_at = now
        elif fault.kind != self.smallest[1].kind:
            return
        if self.smallest is None or len(json.dumps(data)) <= len(json.dumps(self.smallest[0])):
            self.smallest = data, fault
        raise _Failed


def fuzz(server: Server, names: list[str], until: float, most: int, number: int) -> Iterator[tuple[str, int, Any]]:
    """(target, inputs carried out, smallest failing input with its fault) of batches, targets in turns."""
    known: set[str] = set()
    done = 0
    while done < most and time.monotonic() < until:
        for name in names:
            batch = _Batch(name, server, known, until)
            number += 1
            batch.run(number, min(_BATCH, most - done))
            if batch.smallest is not None:
                known.add(f"{name}: {batch.smallest[1].kind}")
            done += batch.count
            yield name, batch.count, batch.smallest
            if done >= most or time.monotonic() > until:
                return


def keep(name: str, data: Any, fault: Fault, folder: Path = CASES) -> Path:
    """Write a failing input where the tests find it."""
    content = {"target": name, "fault": fault.kind, "data": data}
    digest = hashlib.blake2b(json.dumps([name, data]).encode(), digest_size=4).hexdigest()
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{digest}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def main(say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)) -> int:
    """Exit code 1 where an input failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inputs", type=int, default=10**9, help="at most, of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default=",".join(TARGETS), help="some of them, with commas between")
    asked = parser.parse_args()
    names = asked.targets.split(",")
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"--targets={unknown[0]}: allowed are {', '.join(TARGETS)}")
    begun, counts, failed, took_s = time.monotonic(), Counter[str](), Counter[str](), dict.fromkeys(names, 0.0)
    with serving(names) as server:
        say(f"ready after {time.monotonic() - begun:.0f} s")
        begun = before = time.monotonic()
        number = asked.seed * 1_000_000
        for name, count, smallest in fuzz(server, names, begun + 60 * asked.minutes, asked.inputs, number):
            counts[name] += count
            took_s[name] -= before - (before := time.monotonic())
            if smallest is not None:
                failed[name] += 1
                path = keep(name, *smallest)
                say(f"{name}: {smallest[1].kind}\n  kept as {path.relative_to(Path.cwd())}")
                say("\n".join(f"  {line}" for line in smallest[1].text.strip().splitlines()[-6:]))
    took = (time.monotonic() - begun) / 60
    for name in names:
        print(f"{name}: {counts[name]:,} inputs, {failed[name]} failures, {took_s[name]:.0f} s")
    print(f"{counts.total():,} inputs in {took:.1f} minutes, seed {asked.seed}: {failed.total()} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
