"""Finds runs: by folder, by name under `runs/`, the latest, or those of a commit; and what other logs of a run add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ktbench.files import write_whole
from ktbench.resources import is_file
from ktbench.results.lines import Damage, StoreError, encode, read_lines
from ktbench.results.log import LOG_NAME
from ktbench.results.run import Run, copied
from ktbench.spec.errors import RequestError, instead
from ktbench.spec.record import LATEST, Environment, Header, Record

RUNS = Path("runs")
_LATEST = ".latest"


def find_run(name: str) -> Path:
    """Folder of the run `name`: a folder, a name under `runs/`, or `latest`. Raises RequestError with near names.

    It has a name of its own: `.` and `..` are resolved.
    """
    known = run_names()
    if name == LATEST:
        if not known:
            raise RequestError(f"{LATEST}: there is no run under {RUNS}/ yet")
        return RUNS / (_noted(known) or known[-1])
    for folder in (Path(name), RUNS / name):
        if is_file(folder / LOG_NAME):
            return folder if folder.name not in ("", "..") else folder.resolve()
    raise RequestError(f"{name}: no such run{instead(name, known, cutoff=0.4)}")


def note_latest(folder: Path) -> None:
    """Make a run the `latest`: the clock may be set back, so file times do not tell which was started last."""
    with suppress(OSError):
        write_whole(folder.parent / _LATEST, folder.name)


def _noted(known: Sequence[str]) -> str:
    """The run that was started or resumed last here; empty where it is gone or was not noted."""
    with suppress(OSError, ValueError):
        name = (RUNS / _LATEST).read_text()
        return name if name in known else ""
    return ""


def run_names() -> list[str]:
    """Names of the runs under `runs/`, oldest first."""
    logs = [log for log in RUNS.glob(f"*/{LOG_NAME}") if log.is_file()]
    return [log.parent.name for log in sorted(logs, key=lambda log: log.stat().st_mtime)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a run swept and when it was begun, and the commit of its code, empty where that is not known.

    `dirty` says that the code was not the commit's alone.
    """

    folder: Path
    ablation: str
    created: str
    commit: str
    dirty: bool


def read_origin(folder: Path) -> Origin:
    """The origin of the run in a folder, from the first lines of its log.

    A damaged plan is read from its copy. Raises StoreError where it cannot be read.
    """
    header, environment = None, None
    for fact in read_lines(folder / LOG_NAME):
        if isinstance(fact, Damage) and header is None:
            header = next((one for one in copied(folder) if isinstance(one, Header)), None)
        elif isinstance(fact, Header):
            header = fact
        elif header and isinstance(fact, Environment):
            environment = fact
            break
    if header is None:
        raise StoreError(f"{folder}: the plan of this run is missing")
    facts = environment.facts if environment else {}
    return Origin(
        folder=folder,
        ablation=header.ablation,
        created=header.created,
        commit=facts.get("commit") or "",
        dirty=bool(facts.get("dirty")),
    )


def origins_of(commit: str) -> list[Origin]:
    """Runs under `runs/` whose code is that of a commit (hexadecimal digits, a prefix is enough), newest first.

    Those with changes on top of it are among them. Runs whose plan cannot be read are left out.
    """
    found: list[Origin] = []
    for name in run_names():
        with suppress(StoreError):
            found.append(read_origin(RUNS / name))
    return sorted((one for one in found if one.commit.startswith(commit)), key=lambda one: one.created, reverse=True)


# When a record began; of two that began in the same second the one that was timed is the later.
_Began: TypeAlias = tuple[str, bool, bytes]


def lacking(run: Run, others: Iterable[Run], asked_after: int = 0) -> tuple[Environment | Record, ...]:
    """What `others` measured of a run's cells and the run lacks, each once: machines, then records by when they began.

    The same whatever the order of the others. Of the records of one trial in one log the last counts, whatever the
    clock showed: appended to the run's log it counts over one that the run has and that log held earlier. Of records of
    different logs the one that began later counts, of two that began in the same second one that was timed; of what the
    run has a later one is left out. The others were started when the run had `asked_after` records: those are earlier
    than what the others then measured.
    """
    others, cells = tuple(others), {cell.key for cell in run.header.cells}
    there = {encode(environment) for environment in run.environments}
    machines = {encode(environment): environment for other in others for environment in other.environments}
    mine = [(encode(record), record) for record in run.records]
    known, last, new = {content for content, _ in mine}, _ends(mine[asked_after:]), dict[bytes, _End]()
    for other in others:
        for turn, end in _ends((encode(record), record) for record in other.records if record.cell in cells).items():
            if end.contents[-1] not in known and end.counts_over(last.get(turn)):
                new[end.contents[-1]] = max(end, new.get(end.contents[-1], end), key=lambda one: one.when)
    return (
        *(machines[content] for content in sorted(machines.keys() - there)),
        *(end.record for end in sorted(new.values(), key=lambda one: one.when)),
    )


class _End(NamedTuple):
    """The record of a trial that counts in a log: the last of `contents`, which are all that the log has of the trial.

    `when` orders it among those of other logs: it began no earlier than any before it.
    """

    record: Record
    contents: list[bytes]
    when: tuple[_Began, _Began]

    def counts_over(self, before: _End | None) -> bool:
        return before is None or before.contents[-1] in self.contents or self.when > before.when


def _ends(records: Iterable[tuple[bytes, Record]]) -> dict[tuple[str, int], _End]:
    """How each trial ended in a log, of its records with their contents."""
    found: dict[tuple[str, int], _End] = {}
    for content, record in records:
        turn, began = (record.cell, record.round), (record.started, record.outcome.timed, content)
        contents, latest = (found[turn].contents, found[turn].when[0]) if turn in found else ([], began)
        found[turn] = _End(record, [*contents, content], (max(latest, began), began))
    return found
