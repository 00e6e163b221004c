"""Every verb with the real engine, killed at random moments until it is done all the same."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from ktbench.engine.gguf.header import read_header
from ktbench.host import crossovers
from ktbench.host.describe import load_description
from ktbench.host.probe import open_instruments
from ktbench.results import Run, StoreError, read_run
from ktbench.run import probe
from tests.faults.findings import Finding
from tests.faults.forking import Command

RUN = "hurt"
_TINY = ("model=tiny", "model.layers=2", "workload.prompt=8", "workload.steps=2")
_QUICK = (*_TINY, "measure.min_rounds=1", "measure.max_rounds=6")
_ARMS = "sweep.arms=['base','skipping=1','+a']"
_NANO = ("+suite=nano", "tasks=[brackets,sort]", "limit=6", "engine.avx2=true", "engine.skipping=2")
_DRIFT = ("+suite=drift", "limit=4", "engine.avx2=true", "engine.skipping=2")
Words = tuple[str, ...]
Check = Callable[[Path], list[str]]


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A command, what is wrong with what it has left (`check`), and what it writes; `runs` can be resumed."""

    name: str
    words: Words
    check: Check
    output: str = ""
    runs: bool = False
    before: tuple[Words, ...] = ()
    prepare: Callable[[], object] = lambda: None

    def next_words(self, folder: Path, attempt: int) -> Words:
        """The command that begins, or goes on with what there is."""
        if self.name == "trace":
            return (*self.words, f"run_name={RUN}-{attempt}")
        if self.runs:
            return (*self.words, f"resume={RUN}" if is_planned(folder) else f"run_name={RUN}")
        return self.words


def hurt(folder: Path) -> Path:
    """Where the run is."""
    return folder / "runs" / RUN


def is_planned(folder: Path) -> bool:
    """Whether there is a run to resume."""
    try:
        read_run(hurt(folder))
    except StoreError:
        return False
    return True


def facts_of(folder: Path) -> tuple[object, ...]:
    """All that a run has kept, in order."""
    if not is_planned(folder):
        return ()
    run = read_run(hurt(folder))
    return (*run.records, *run.sample_results, *run.task_results)


def torn_files(folder: Path) -> list[str]:
    """Files below a folder that are not whole, by their kind. What is being written has a hidden name."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return [f"{file.relative_to(folder)} is torn" for file in files if not _is_whole(file)]


_ENDS = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n", ".svg": b"</svg>\n", ".html": b"</html>\n"}
_ENDS |= dict.fromkeys((".md", ".csv", ".tex"), b"\n")


def _is_whole(file: Path) -> bool:
    content = file.read_bytes()
    try:
        if file.suffix == ".json":
            return json.loads(content) is not None
        if file.suffix == ".gguf":
            return bool(read_header(file).tensors)
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                return {*arrays} == {"counts", "about"}
        if file.name.startswith("machine"):
            return bool(load_description(file).constants)
    except ValueError:
        return False
    return content.endswith(_ENDS.get(file.suffix, b""))


def _of_run(folder: Path) -> list[str]:
    return torn_files(folder / "runs")


def _quick_probe() -> None:
    """As `probe`, in a second instead of a minute."""
    probe._ROUNDS, probe._SECONDS = 2, 0.1  # type: ignore[misc]
    crossovers._BUDGET_S, crossovers._LEAST_ROUNDS, crossovers._TOKENS = 0.0, 1, (1, 4)  # type: ignore[misc]
    crossovers._EXPERTS, crossovers._HIDDEN, crossovers._INTERMEDIATE = 2, 256, 256  # type: ignore[misc]
    probe.READ_BUFFER_BYTES = 1 << 26
    probe.open_instruments = partial(open_instruments, buffer_bytes=1 << 26)


_FIRST = ("sweep", _ARMS, *_QUICK, f"run_name={RUN}")
VERBS = (
    Verb(name="sweep", words=("sweep", _ARMS, *_QUICK), check=_of_run, runs=True),
    Verb(name="run", words=("run", *_QUICK, "engine.avx2=true", "model.packed=packed"), check=_of_run, runs=True),
    Verb(name="eval", words=("eval", *_NANO), check=_of_run, runs=True),
    Verb(name="eval of drift", words=("eval", *_DRIFT), check=_of_run, runs=True),
    Verb(name="trace", words=("trace", *_TINY, "engine.avx2=true"), check=_of_run),
    Verb(name="export", words=("export", "model=tiny", "output=model.gguf"), check=torn_files, output="model.gguf"),
    Verb(name="record", words=("record", *_TINY, "workload.routing=model", "output=profile.npz"), check=torn_files,
         output="profile.npz"),
    Verb(name="probe", words=("probe", "out=machine.yaml"), check=torn_files, prepare=_quick_probe),
    Verb(name="plan", words=("plan", *_TINY), check=torn_files),
    Verb(name="report", words=("report", RUN), check=_of_run, before=(_FIRST,)),
    Verb(name="report kit", words=("report", RUN, "kit", "html"), check=_of_run, before=(_FIRST,)),
)  # fmt: skip


def killed_verb(folder: Path, verb: Verb, random: Random, kills: int) -> Finding:
    """SIGKILL at moments spread evenly over the time that the command takes, until there were so many."""
    undisturbed, took_s = _undisturbed(folder / "undisturbed", verb)
    done, lost, doubled, times, problems = 0, 0, 0, 0, list[str]()
    while done < kills:
        here = folder / str(times)
        _begin(here, undisturbed, verb)
        killed, found = _until_done(here, verb, random, took_s)
        problems += [*found, *_unlike(here, undisturbed, verb)]
        doubled += _doubled(here) if verb.runs else 0
        done, times, lost = done + killed, times + 1, len(problems)
        shutil.rmtree(here)
    return Finding(
        fault=f"SIGKILL of `{verb.name}`, real engine",
        times=done,
        happened=f"{times} times repeated until it was done; no file is torn, nothing it had started is left"
        if not problems
        else "; ".join(dict.fromkeys(problems)),
        message="",
        lost=lost,
        doubled=doubled if verb.runs else None,
    )


def _undisturbed(folder: Path, verb: Verb) -> tuple[Path, float]:
    """What the command writes when it is left alone, and how long it takes the second time, with warm caches."""
    for words in (*verb.before, verb.next_words(folder, 0)):
        _ended_well(Command(folder, words, verb.prepare).start())
    again = folder.with_name("again")
    _begin(again, folder, verb)
    began_s = time.monotonic()
    _ended_well(Command(again, verb.next_words(again, 0), verb.prepare).start())
    return folder, time.monotonic() - began_s


def _begin(folder: Path, undisturbed: Path, verb: Verb) -> None:
    """A folder with the caches, and what the command needs before it."""
    folder.mkdir(parents=True)
    if (undisturbed / "cache").is_dir():
        shutil.copytree(undisturbed / "cache", folder / "cache")
    if verb.before:
        shutil.copytree(undisturbed / "runs", folder / "runs")


def _ended_well(command: Command) -> None:
    code = command.end()
    assert code == 0, (command.words, code, command.said()[-5:])


def _until_done(folder: Path, verb: Verb, random: Random, took_s: float) -> tuple[int, list[str]]:
    """How often the command was killed before it was done, and what was wrong in between."""
    problems: list[str] = []
    for attempt in range(1000):
        before = facts_of(folder) if verb.runs else ()
        command = Command(folder, verb.next_words(folder, attempt), verb.prepare).start()
        until = time.monotonic() + random.uniform(0, took_s)
        while time.monotonic() < until and not command.is_over():
            time.sleep(0.001)
        command.send(signal.SIGKILL)
        code = command.end()
        problems += verb.check(folder)
        if verb.runs:
            problems += _lost(before, facts_of(folder), command)
        if code == -signal.SIGKILL and verb.output and (folder / verb.output).exists():
            return attempt + 1, problems  # it was written before the command ended, and is not written again
        if code != -signal.SIGKILL:
            if code != 0:
                problems.append(f"exit {code}: {' '.join(command.said()[-1:])}")
            return attempt, problems
    raise AssertionError(f"{verb.name} is never done")


def _lost(before: Sequence[object], after: Sequence[object], command: Command) -> Iterator[str]:
    """Facts that were on disk and are not, and turns that were shown as done and are not on disk."""
    kinds = [type(fact).__name__ for fact in before]
    if Counter(map(repr, before)) - Counter(map(repr, after)):
        yield f"of {len(kinds)} facts some are gone"
    told = sum(line.startswith("  round ") for line in command.said())
    if told > len(after) - len(before):
        yield f"{told} turns were shown, {len(after) - len(before)} kept"


def _unlike(folder: Path, undisturbed: Path, verb: Verb) -> Iterator[str]:
    """How the end differs from that of a command that was left alone."""
    if verb.output and (folder / verb.output).read_bytes() != (undisturbed / verb.output).read_bytes():
        yield f"{verb.output} differs"
    if verb.runs:
        mine, theirs = (read_run(hurt(one)) for one in (folder, undisturbed))
        if _ends(mine) != _ends(theirs):
            yield "turns or tasks are missing"
    if verb.before:
        for file in (hurt(undisturbed) / "report").rglob("*"):
            mine_file = hurt(folder) / "report" / file.relative_to(hurt(undisturbed) / "report")
            if file.is_file() and mine_file.read_bytes() != file.read_bytes():
                yield f"{file.name} differs"


def _ends(run: Run) -> tuple[set[tuple[str, int]], set[tuple[str, str, int]]]:
    """What is measured and answered, whatever the numbers."""
    answers = {(*where, len(found)) for where, found in run.answers().items()}
    return {where for where, record in run.latest().items() if record.outcome.timed}, answers


def _doubled(folder: Path) -> int:
    records = Counter((record.cell, record.round) for record in read_run(hurt(folder)).records if record.outcome.timed)
    ends = Counter((end.cell, end.task) for end in read_run(hurt(folder)).task_results)
    return sum(count - 1 for count in (*records.values(), *ends.values()))
