"""Finds a run by folder, by name under `runs/`, or the latest one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from ktbench.results.store.log import LOG_NAME
from ktbench.spec.errors import RequestError

RUNS = Path("runs")
_LATEST = ".latest"


def find_run(name: str) -> Path:
    """Folder of the run `name`: a folder, a name under `runs/`, or `latest`. Raises RequestError with near names.

    It has a name of its own: `.` and `..` are resolved.
    """
    known = run_names()
    if name == "latest":
        if not known:
            raise RequestError(f"latest: there is no run under {RUNS}/ yet")
        return RUNS / (_noted(known) or known[-1])
    for folder in (Path(name), RUNS / name):
        if (folder / LOG_NAME).is_file():
            return folder if folder.name not in ("", "..") else folder.resolve()
    close = get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f", did you mean {close[0]}?" if close else ""
    raise RequestError(f"{name}: no such run{hint}; known are {', '.join(known) or 'none'}")


def note_latest(folder: Path) -> None:
    """Make a run the `latest`: the clock may be set back, so times of files do not say which was started last."""
    with suppress(OSError):
        (folder.parent / _LATEST).write_text(folder.name)


def _noted(known: Sequence[str]) -> str:
    """The run that was started or resumed last here; empty where it is gone, or nobody noted it."""
    with suppress(OSError, ValueError):
        name = (RUNS / _LATEST).read_text()
        return name if name in known else ""
    return ""


def run_names() -> list[str]:
    """Names of the runs under `runs/`, oldest first."""
    logs = RUNS.glob(f"*/{LOG_NAME}")
    return [log.parent.name for log in sorted(logs, key=lambda log: log.stat().st_mtime)]
