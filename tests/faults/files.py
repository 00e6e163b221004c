"""A disk that fills while any kind of file is written: the file is whole or not there, and its name is said."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.findings import Finding
from tests.faults.forking import Command
from tests.faults.verbs import VERBS, Verb, begin, left_alone, torn_files

FULL = 4
LARGEST = 1 << 18  # a limit that most of the larger files reach


def _limited(verb: Verb, limit: int) -> Callable[[], object]:
    """No file may grow beyond `limit` bytes (EFBIG): as on a full disk, a part of a write succeeds."""

    def prepare() -> None:
        verb.prepare()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return prepare


def full_while_writing(folder: Path, verb: Verb, random: Random, times: int) -> Finding:
    """The command with a random limit on the size of its files, each time anew."""
    undisturbed = left_alone(folder / "undisturbed", verb)
    full, wrong, message = 0, list[str](), ""
    for number in range(times):
        here = begin(folder / str(number), undisturbed, verb)
        limit = random.randrange(1, random.choice((1 << 12, 1 << 15, LARGEST)))
        command = Command(here, verb.next_words(here), _limited(verb, limit)).start()
        code, said = command.end(), command.said()
        full += code == FULL
        if code not in (0, FULL):
            wrong.append(f"exit {code}")
        if any("Traceback" in line for line in said):
            wrong.append("a traceback")
        if code == FULL and "File too large" not in "\n".join(said):
            wrong.append(f"says nothing of the disk: {said[-1:]}")
        wrong += [*torn_files(here), *_parts_left(here)]
        message = next((line for line in reversed(said) if "File too large" in line), message)
        shutil.rmtree(here)
    return Finding(
        fault=f"full disk while `{verb.name}` writes",
        times=full,
        happened=f"exit {FULL} with the file's name; every file is whole or not there"
        if not wrong
        else "; ".join(dict.fromkeys(wrong)),
        message=message.replace(str(folder), ""),
        lost=len(wrong),
        doubled=None,
    )


def _parts_left(folder: Path) -> list[str]:
    """Half-written files that a command which ended by itself has left."""
    parts = [path for path in folder.rglob("*") if path.name.endswith(".part") or ".partial-" in path.name]
    return [f"{path.relative_to(folder)} is left" for path in parts]


WRITERS = tuple(verb for verb in VERBS if verb.name != "sweep")
