"""Sweeps of the real engine that are interrupted, hung up, asked to end, stopped and continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from ktbench.results import read_run
from ktbench.spec.record import Outcome
from tests.faults.findings import Finding
from tests.faults.forking import Command
from tests.faults.lives import wait_until
from tests.faults.runs import RUN, begun_or_resumed, doubled, hurt, missing, records_of
from tests.faults.verbs import Verb, begin, left_alone, unlike

_SWEEP = (
    "sweep", "sweep.arms=['base','skipping=1','+a']", "model=tiny", "model.layers=2", "workload.prompt=8",
    "workload.steps=4", "measure.min_rounds=1", "measure.max_rounds=3",
    "engine.threads=1",  # two that wait for each other take a hundred times as long where other tests keep cores busy
)  # fmt: skip
ENDINGS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "Ctrl-C twice and three times": ((signal.SIGINT,) * 3, (130,)),
    "SIGHUP (the terminal is closed)": ((signal.SIGHUP,), (129,)),
    "SIGTERM, then Ctrl-C": ((signal.SIGTERM, signal.SIGINT), (143, 130)),
}
_STOPPED_S = 1.5
_DEADLINE_S = 30.0  # which a trial of a busy machine keeps
EVERYBODY = "the sweep and its workers"
SUSPENDED = (EVERYBODY, "the sweep alone")


def _sweep(folder: Path) -> Command:
    return Command(folder, (*_SWEEP, begun_or_resumed(folder))).start()


def _wait_for_records(sweep: Command, count: int) -> None:
    wait_until(lambda: _count(sweep.folder) >= count or sweep.is_over())


def _count(folder: Path) -> int:
    return len(records_of(folder))


def ended(folder: Path, fault: str, random: Random, times: int) -> Finding:
    """Signals shortly after each other, each time after some trials, until the sweep is done."""
    numbers, codes = ENDINGS[fault]
    done, wrong, message = 0, list[str](), ""
    while done < times:
        before, sweep = _count(folder), _sweep(folder)
        _wait_for_records(sweep, before + random.randrange(6))
        time.sleep(random.uniform(0, 0.3))
        for number in numbers:
            sweep.send(number)
            time.sleep(random.uniform(0, 0.2))
        code = sweep.end()
        wrong += [] if code in (0, *codes) else [f"exit {code}: {_why(folder)}"]
        wrong += [line for line in sweep.said() if "Traceback" in line]
        wrong += ["records are gone"] if _count(folder) < before else []
        message = next((line for line in sweep.said() if line.startswith("interrupted")), message)
        done += code != 0
        if code == 0:
            wrong += _not_once(folder)
            hurt(folder).rename(hurt(folder).with_name(f"done-{done}-{time.monotonic()}"))
    sweep = _sweep(folder)
    if code := sweep.end():
        wrong.append(f"exit {code} in the end: {_why(folder)}")
    wrong += _not_once(folder)
    return Finding(
        fault=f"{fault}, real engine",
        times=done,
        happened=f"exit {' or '.join(map(str, codes))}, no traceback; resumed, each turn is measured once"
        if not wrong
        else "; ".join(wrong),
        message=message,
        lost=len(wrong),
    )


def _why(folder: Path) -> str:
    """What became of trials that failed."""
    return ", ".join(f"{one.label} {one.outcome}: {one.why}" for one in records_of(folder) if not one.outcome.timed)


def _not_once(folder: Path) -> list[str]:
    """Planned trials that were not measured exactly once."""
    run = read_run(hurt(folder))
    gone, twice = missing(run), doubled(run)
    return [f"{gone} trials are missing, {twice} doubled: {_why(folder)}"] if gone or twice else []


def stopped(folder: Path, random: Random, times: int) -> Finding:
    """A worker is stopped and continued again and again while it is timed."""
    sweep = Command(folder, (*_SWEEP, f"run_name={RUN}", "workload.steps=200")).start()  # steps are most of a trial
    stops = 0
    while not sweep.is_over() and stops < times:
        time.sleep(random.uniform(0.05, 0.4))
        for worker in _children(sweep.pid) if _count(folder) else ():
            _send(worker, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            _send(worker, signal.SIGCONT)
            stops += 1
    assert sweep.end() == 0, sweep.said()[-3:]
    run = read_run(hurt(folder))
    assert stops, "the sweep was over before it was stopped"
    dirty = [one for one in run.records if one.samples_s and max(one.samples_s) >= _STOPPED_S]
    noted = [one for one in run.records if any("was stopped meanwhile" in note for note in one.notes)]
    bad = [one for one in run.records if one.outcome not in (Outcome.OK, Outcome.NOISY, Outcome.UNSUPPORTED)]
    return Finding(
        fault="a worker stopped and continued (SIGSTOP, SIGCONT) in the middle of a sweep",
        times=stops,
        happened=f"no sample holds a stop of {_STOPPED_S:g} s; {len(noted)} trials were timed again, as a note says",
        message="",
        lost=len(dirty) + len(bad) + len(_not_once(folder)),
    )


def suspended(folder: Path, whom: str) -> Finding:
    """The sweep is stopped for longer than a trial may take, by Ctrl-Z or a debugger, or all by a batch system."""
    sweep = Command(folder, (*_SWEEP, f"run_name={RUN}", f"measure.turn_timeout_s={_DEADLINE_S:g}")).start()
    while _count(folder) < 3 and not sweep.is_over():
        time.sleep(0.02)
    everybody = [sweep.pid, *(_children(sweep.pid) if whom == EVERYBODY else ())]
    for number, wait_s in ((signal.SIGSTOP, _DEADLINE_S + 2), (signal.SIGCONT, 0.0)):
        for pid in everybody:
            _send(pid, number)
        time.sleep(wait_s)
    code = sweep.end()
    run = read_run(hurt(folder))
    late = [one.why for one in run.records if one.outcome is Outcome.TIMEOUT]
    return Finding(
        fault=f"{whom} stopped for longer than a trial may take",
        times=1,
        happened=f"exit {code}; {f'{len(late)} trials are' if late else 'no trial is'} TIMEOUT, its time begins anew",
        message="; ".join(late),
        lost=len(late) + (code != 0) + len(_not_once(folder)),
    )


def child_stopped(folder: Path, verb: Verb) -> Finding:
    """The process that works for a command without a deadline is stopped: continued it ends well, else Ctrl-C ends it.

    The command itself waits meanwhile.
    """
    undisturbed, wrong, message = left_alone(folder / "undisturbed", verb), list[str](), ""
    for number, ends in ((signal.SIGCONT, 0), (signal.SIGINT, 130)):
        here = begin(folder / number.name, undisturbed, verb)
        command = Command(here, verb.next_words(here), verb.prepare).start()
        while not _children(command.pid) and not command.is_over():
            time.sleep(0.01)
        for child in _children(command.pid):
            _send(child, signal.SIGSTOP)
        time.sleep(_STOPPED_S)
        wrong += [f"exit {command.code} while its child was stopped"] if command.is_over() else []
        for pid in _children(command.pid) if number == signal.SIGCONT else [command.pid]:
            _send(pid, number)
        code = command.end()
        wrong += [f"exit {code} after {number.name}"] if code != ends else []
        wrong += [*verb.check(here), *(unlike(here, undisturbed, verb) if code == 0 else ())]
        message = command.message() if code else message
    return Finding(
        fault=f"the process that works for `{verb.name}` stopped (SIGSTOP)",
        times=2,
        happened="it waits; continued, it ends as if undisturbed; after Ctrl-C exit 130, and nothing is left running"
        if not wrong
        else "; ".join(wrong),
        message=message,
        lost=len(wrong),
        doubled=None,
    )


def _children(pid: int) -> Sequence[int]:
    """Those that lead their session, which a process started by ktbench does before `Popen` returns."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in children if os.getsid(child) == child]
    except OSError:
        return []


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
