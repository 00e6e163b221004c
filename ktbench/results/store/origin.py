"""Where runs came from: finds those of a commit without reading their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ktbench.results.store.find import RUNS, run_names
from ktbench.results.store.lines import Damage, StoreError, read_lines
from ktbench.results.store.log import LOG_NAME
from ktbench.results.store.run import copied
from ktbench.spec.record import Environment, Header


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
    header: Header | None = None
    for fact in read_lines(folder / LOG_NAME):
        if isinstance(fact, Damage) and header is None:
            header = next((one for one in copied(folder) if isinstance(one, Header)), None)
        if isinstance(fact, Header):
            header = fact
        if header and isinstance(fact, Environment):
            return _origin(folder, header, fact)
    if header is None:
        raise StoreError(f"{folder}: nothing says what this run planned")
    return _origin(folder, header, None)


def _origin(folder: Path, header: Header, environment: Environment | None) -> Origin:
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

    Those with changes on top of it are among them. Runs whose plan cannot be read are nobody's.
    """
    found = [origin for origin in _origins() if origin.commit.startswith(commit)]
    return sorted(found, key=lambda origin: origin.created, reverse=True)


def _origins() -> Iterator[Origin]:
    for name in run_names():
        try:
            yield read_origin(RUNS / name)
        except StoreError:
            continue
