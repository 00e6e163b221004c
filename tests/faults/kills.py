"""Sweeps that are killed at random moments and in the middle of a write, until they are done all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import IO

from ktbench.results import log, read_run
from tests.faults.findings import Finding
from tests.faults.lives import PATIENCE_S, Life, begin, log_bytes, machine, planned, table
from tests.faults.runs import doubled, hurt, missing, records_of

Kill = Callable[[Life], None]
Start = Callable[[Path], Life]


class Undisturbed:
    """The same sweep left alone: its table, how much it writes, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        machine(), planned(PATIENCE_S)
        began = time.monotonic()
        life = begin(folder)
        assert life.end() == 0, life.message()
        self.took_s = time.monotonic() - began
        self.table, self.log_bytes = table(folder), log_bytes(folder)


def killed_any_time(folder: Path, undisturbed: Undisturbed, random: Random, kills: int) -> Finding:
    """SIGKILL at moments spread evenly over the time that a sweep takes."""
    found = _killed(
        folder, undisturbed, kills, begin, lambda life: life.kill_after(random.uniform(0, undisturbed.took_s))
    )
    return replace(found, fault="SIGKILL at a random moment")


def killed_while_writing(folder: Path, undisturbed: Undisturbed, random: Random, kills: int) -> Finding:
    """SIGKILL after some bytes of a write, after all of them, or after they are on disk."""

    def start(here: Path) -> Life:
        return begin(here, prepare=_torn(random.randrange(14), random.randrange(600)))

    found = _killed(folder, undisturbed, kills, start, lambda life: None)
    return replace(found, fault="SIGKILL in the middle of a write")


def _killed(folder: Path, undisturbed: Undisturbed, kills: int, start: Start, kill: Kill) -> Finding:
    """Sweeps one after the other, each gone on with until it is done, until there were so many kills."""
    done, lost, twice, sweeps, wrong = 0, 0, 0, 0, 0
    while done < kills:
        assert sweeps < 20 * kills, f"{done} kills in {sweeps} sweeps"
        here = folder / str(sweeps)
        killed, gone = _until_done(here, start, kill)
        done, lost, sweeps = done + killed, lost + gone, sweeps + 1
        run = read_run(hurt(here))
        twice += doubled(run)
        wrong += missing(run) + (table(here) != undisturbed.table)
    same = f"{wrong} turns or tables not as undisturbed" if wrong else "each has the table of an undisturbed run"
    return Finding(
        fault="",
        times=done,
        happened=f"{sweeps} sweeps resumed until they were done: {same}",
        message="",
        lost=lost + wrong,
        doubled=twice,
    )


def _until_done(folder: Path, start: Start, kill: Kill) -> tuple[int, int]:
    """How often the sweep was killed, and how many records or promised turns were gone afterwards."""
    killed, lost = 0, 0
    while True:
        before = records_of(folder)
        life = start(folder)
        kill(life)
        code = life.end()
        after = records_of(folder)
        lost += (after[: len(before)] != before) + max(0, life.told() - (len(after) - len(before)))
        if code != -signal.SIGKILL:
            assert code == 0, life.message()
            return killed, lost
        killed += 1


def _torn(writes: int, length: int) -> Callable[[], None]:
    """Dies in the log's write number `writes` after `length` bytes of it; where it is shorter, once it is on disk."""

    def prepare() -> None:
        left = iter(range(writes))
        write, sync = os.write, os.fsync

        def torn(file: IO[bytes], content: bytes) -> None:
            dies = next(left, None) is None
            write(file.fileno(), content[:length] if dies else content)
            if dies and length < len(content):
                os.kill(os.getpid(), signal.SIGKILL)
            sync(file.fileno())
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

        log.write_all = torn

    return prepare
