"""Disks that are full, folders that cannot be written, lines that are not what was written."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from random import Random

from ktbench.results import LOG_NAME, read_run
from ktbench.results.log import PLAN_NAME
from tests.faults.findings import Finding
from tests.faults.kills import Undisturbed
from tests.faults.lives import SWEEP, Life, begin, log_bytes, table
from tests.faults.runs import RUN, doubled, hurt, is_planned, missing, records_of

FULL, REFUSED = 4, 2


def full_disk(folder: Path, undisturbed: Undisturbed, random: Random, times: int) -> Finding:
    """No file may grow beyond a random size: as a full disk, it takes a part of a line and then nothing."""
    lost, full, message = 0, 0, ""
    while full < times or not message:
        before = records_of(folder)
        limit = log_bytes(folder) + random.randrange(200, undisturbed.log_bytes)
        life = begin(folder, prepare=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        code, after = life.end(), records_of(folder)
        lost += (after[: len(before)] != before) + max(0, life.told() - (len(after) - len(before)))
        if code == 0:
            lost += missing(read_run(hurt(folder))) + (table(folder) != undisturbed.table)
            shutil.rmtree(folder)
            continue
        full += 1
        assert code == FULL and "Traceback" not in "\n".join(life.said()), (code, life.said()[-3:])
        message = life.message() if is_planned(folder) else message  # without a plan there is nothing to go on with
        assert is_planned(folder) or not hurt(folder).exists(), "nothing was kept, and something is left"
    life = begin(folder)
    assert life.end() == 0, life.message()
    run = read_run(hurt(folder))
    return Finding(
        fault="full disk",
        times=full,
        happened=f"exit {FULL}; the log ends with the last whole line, and is gone on with to the undisturbed table",
        message=message,
        lost=lost + missing(run) + (table(folder) != undisturbed.table),
        doubled=doubled(run),
    )


def full_output(folder: Path) -> Finding:
    """Standard output takes nothing more, as where it goes into a file on a full disk."""
    life = begin(folder)
    assert life.end() == 0, life.message()

    def prepare() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    life = Life(folder=folder, words=("report", RUN, "md"), prepare=prepare).start()
    assert life.end() == FULL, life.message()
    return Finding(
        fault="standard output on a full disk",
        times=1,
        happened=f"exit {FULL}; what was measured and the files written are kept",
        message=life.message(),
        lost=missing(read_run(hurt(folder))),
    )


def read_only(folder: Path) -> Finding:
    """A folder in which nobody may make anything: that of the kernel's settings is one, for root as well."""
    folder.mkdir(parents=True)
    life = Life(folder=folder, words=(*SWEEP, f"run_name={RUN}"), prepare=lambda: os.chdir("/sys")).start()
    assert life.end() == REFUSED, life.message()
    return Finding(
        fault="read-only run folder",
        times=1,
        happened=f"exit {REFUSED} before any worker starts",
        message=life.message(),
        lost=None,
        doubled=None,
    )


def flipped_bits(folder: Path, undisturbed: Undisturbed, random: Random, times: int, resumed: int) -> Finding:
    """One bit of a finished log is flipped: every record is there as it was, or its line is named."""
    life = begin(folder / "whole")
    assert life.end() == 0, life.message()
    source, here = hurt(folder / "whole"), folder / "flipped"
    whole, content = read_run(source), (source / LOG_NAME).read_bytes()
    silent, message = 0, ""
    for number in range(times):
        hurt(here).mkdir(parents=True, exist_ok=True)
        where = random.randrange(len(content))
        flipped = content[:where] + bytes([content[where] ^ 1 << random.randrange(8)]) + content[where + 1 :]
        (hurt(here) / LOG_NAME).write_bytes(flipped)
        shutil.copy(source / PLAN_NAME, hurt(here))
        run = read_run(hurt(here))
        silent += run.header != whole.header
        left = [record for record in whole.records if record not in run.records]
        silent += len(left) > 1 or (bool(left) and not run.damage) or not set(run.records) <= set(whole.records)
        message = str(run.damage[0]).removeprefix(f"{here}/") if run.damage and left else message
        if left and number < resumed:
            life = begin(here)
            assert life.end() == 0, life.message()
            silent += (table(here) != undisturbed.table) + missing(read_run(hurt(here)))
        shutil.rmtree(here)
    return Finding(
        fault="a flipped bit in the log",
        times=times,
        happened="the line is named and left out, all others are read (the plan from its copy); resuming measures the "
        "turn again",
        message=message,
        lost=silent,
    )


def half_lines(folder: Path, undisturbed: Undisturbed, random: Random, times: int) -> Finding:
    """The log ends at a random byte: exactly the whole lines before it are left."""
    life = begin(folder)
    assert life.end() == 0, life.message()
    file, wrong = hurt(folder) / LOG_NAME, 0
    content = file.read_bytes()
    whole = read_run(file.parent)
    plan = content.index(b"\n")
    for _ in range(times):
        cut = random.randrange(plan, len(content))
        file.write_bytes(content[:cut])
        kept = (content[:cut] + b"\n").count(b'"kind":"record"', 0, _end(content, cut))
        run = read_run(file.parent)
        wrong += run.records != whole.records[:kept] or bool(run.damage)
    life = begin(folder)
    assert life.end() == 0, life.message()
    run = read_run(file.parent)
    return Finding(
        fault="a half-written line at the end of the log",
        times=times,
        happened="it is dropped, the whole lines before it are read; resuming measures the rest",
        message="",
        lost=wrong + missing(run) + (table(folder) != undisturbed.table),
        doubled=doubled(run),
    )


def _end(content: bytes, cut: int) -> int:
    """Where the last whole line before a cut ends: one that lacks nothing but its newline is whole."""
    return cut + 1 if content[cut : cut + 1] == b"\n" else content.rfind(b"\n", 0, cut) + 1
