"""Every verb with the real engine, killed at random moments until it is done all the same."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from ktbench.engine.gguf.header import read_header
from ktbench.host.describe import load_description
from ktbench.host.probe import open_instruments
from ktbench.results import Run, read_run
from ktbench.run import probe
from tests.faults.findings import Finding
from tests.faults.forking import BUFFER_BYTES, Command
from tests.faults.runs import RUN, begun_or_resumed, doubled, facts_of, hurt

# One thread: two that wait for each other take a hundred times as long where other tests keep the cores busy.
_TINY = ("model=tiny", "model.layers=2", "workload.prompt=8", "workload.steps=2", "engine.threads=1")
_QUICK = (*_TINY, "measure.min_rounds=1", "measure.max_rounds=3")
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

    def next_words(self, folder: Path) -> Words:
        """The command that begins, or goes on with what there is."""
        if self.runs:
            return (*self.words, begun_or_resumed(folder))
        return self.words


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
    probe.READ_BUFFER_BYTES = BUFFER_BYTES
    probe.open_instruments = partial(open_instruments, buffer_bytes=BUFFER_BYTES)


_FIRST = ("sweep", _ARMS, *_QUICK, f"run_name={RUN}")
VERBS = (
    Verb(name="sweep", words=("sweep", _ARMS, *_QUICK), check=_of_run, runs=True),
    Verb(name="run", words=("run", *_QUICK, "engine.avx2=true", "model.packed=packed"), check=_of_run, runs=True),
    Verb(name="eval", words=("eval", *_NANO), check=_of_run, runs=True),
    Verb(name="eval-drift", words=("eval", *_DRIFT), check=_of_run, runs=True),
    Verb(name="trace", words=("trace", *_TINY, "engine.avx2=true", f"run_name={RUN}"), check=_of_run),
    Verb(name="export", words=("export", "model=tiny", "output=model.gguf"), check=torn_files, output="model.gguf"),
    Verb(name="record", words=("record", *_TINY, "workload.routing=model", "output=profile.npz"), check=torn_files,
         output="profile.npz"),
    Verb(name="probe", words=("probe", "out=machine.yaml"), check=torn_files, prepare=_quick_probe),
    Verb(name="validate", words=("validate", "out=judged"), check=torn_files, output="judged/cells.csv"),
    Verb(name="plan", words=("plan", *_TINY), check=torn_files),
    Verb(name="report", words=("report", RUN), check=_of_run, before=(_FIRST,)),
    Verb(name="report-kit", words=("report", RUN, "kit", "html"), check=_of_run, before=(_FIRST,)),
    Verb(name="compare", words=("compare", RUN, RUN), check=_of_run, before=(_FIRST,)),
)  # fmt: skip


def killed_verb(folder: Path, verb: Verb, random: Random, kills: int, until: float = math.inf) -> Finding:
    """SIGKILL at moments spread evenly over the time that the command takes: so many, or as many as until then."""
    undisturbed = left_alone(folder / "undisturbed", verb)
    again = begin(folder / "again", undisturbed, verb)
    began_s = time.monotonic()  # with warm caches
    _ended_well(Command(again, verb.next_words(again), verb.prepare).start())
    took_s = time.monotonic() - began_s
    done, twice, times, problems = 0, 0, 0, list[str]()
    while done < kills and time.monotonic() < until:
        here = begin(folder / str(times), undisturbed, verb)
        killed, found = _until_done(here, verb, lambda: random.uniform(0, took_s), kills - done, until)
        problems += [*found, *unlike(here, undisturbed, verb)]
        twice += doubled(read_run(hurt(here))) if verb.runs else 0
        done, times = done + killed, times + 1
        shutil.rmtree(here)
    return Finding(
        fault=f"SIGKILL of `{verb.name}`, real engine",
        times=done,
        happened=f"{times} times repeated until it was done; no file is torn, nothing it had started is left"
        if not problems
        else "; ".join(dict.fromkeys(problems)),
        message="",
        lost=len(problems),
        doubled=twice if verb.runs else None,
    )


def left_alone(folder: Path, verb: Verb) -> Path:
    """A folder in which the command, and what it needs before, were left alone."""
    for words in verb.before:
        _ended_well(Command(folder, words).start())
    shutil.rmtree(hurt(folder) / "report", ignore_errors=True)
    _ended_well(Command(folder, verb.next_words(folder), verb.prepare).start())
    return folder


def begin(folder: Path, undisturbed: Path, verb: Verb) -> Path:
    """A folder with the caches, and what the command needs before it, but nothing that it writes."""
    folder.mkdir(parents=True)
    for name in ("cache", *(("runs",) if verb.before else ())):
        if (undisturbed / name).is_dir():
            shutil.copytree(undisturbed / name, folder / name)
    shutil.rmtree(hurt(folder) / "report", ignore_errors=True)
    return folder


def _ended_well(command: Command) -> None:
    code = command.end()
    assert code == 0, (command.words, code, command.said()[-5:])


def _until_done(
    folder: Path, verb: Verb, lives_s: Callable[[], float], most: int, until: float
) -> tuple[int, list[str]]:
    """How often the command was killed, `most` times at most and not after `until`, and what was wrong in between."""
    problems: list[str] = []
    for killed in count():
        before = facts_of(folder) if verb.runs else ()
        command = Command(folder, verb.next_words(folder), verb.prepare).start()
        if killed < most and time.monotonic() < until:
            command.kill_after(lives_s())
        code = command.end()
        problems += verb.check(folder)
        if verb.runs:
            problems += _lost(before, facts_of(folder), command)
        if code != -signal.SIGKILL:
            problems += [] if code == 0 else [f"exit {code}: {command.message()}"]
            return killed, problems
        if verb.output and (folder / verb.output).exists():
            return killed + 1, problems  # it was written before the command ended, and is not written again
    raise AssertionError


def _lost(before: Sequence[object], after: Sequence[object], command: Command) -> Iterator[str]:
    """Facts that were on disk and are not, and trials that were shown as done and are not on disk."""
    if Counter(map(repr, before)) - Counter(map(repr, after)):
        yield f"of {len(before)} facts some are gone"
    if command.told() > len(after) - len(before):
        yield f"{command.told()} trials were shown, {len(after) - len(before)} kept"


def unlike(folder: Path, undisturbed: Path, verb: Verb) -> Iterator[str]:
    """How the end of a command differs from that of one that was left alone."""
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
