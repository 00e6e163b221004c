"""Progress lines on stderr: names of cells, loading, results of trials and rounds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from shutil import get_terminal_size
from statistics import median
from time import monotonic
from typing import TextIO

from ktbench.engine.loading.progress import Loading
from ktbench.results.settings import Setting, cell_settings, setting_in_words, varying
from ktbench.results.stopping import CellProgress, SweepCriterion
from ktbench.spec.errors import one_line, printable
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec

_CLEARED = "\r\x1b[K"  # cursor to the start of the line, which is cleared (ECMA-48: EL)
_STATUS_EVERY_S = 60.0  # if lines cannot be replaced


@dataclass
class _Console:
    """The content of stderr: permanent lines and, on a terminal, a replaceable one below them."""

    is_quiet: bool = False
    said_s: float = -inf

    def say(self, line: str) -> None:
        """Print a permanent line. Errors of stderr are ignored, since the reader may have closed it."""
        self._print(f"{_CLEARED if sys.stderr.isatty() else ''}{printable(line)}", end="\n")

    def replace(self, line: str) -> None:
        """Replace the last line, cut to the width of the terminal."""
        columns = get_terminal_size().columns
        self._print(f"{_CLEARED}{printable(line)[: columns - 1]}", end="")

    def clear(self) -> None:
        """Remove that line."""
        if sys.stderr.isatty() and not self.is_quiet:
            self._print(_CLEARED, end="")

    @staticmethod
    def _print(text: str, end: str) -> None:
        with suppress(OSError, UnicodeError):
            print(text, end=end, file=sys.stderr, flush=True)


_CONSOLE = _Console()


@contextmanager
def quiet_progress() -> Iterator[None]:
    """Inside, only warnings are printed."""
    before, _CONSOLE.is_quiet = _CONSOLE.is_quiet, True
    try:
        yield
    finally:
        _CONSOLE.is_quiet = before


def say(line: str) -> None:
    """Print one line of progress."""
    if not _CONSOLE.is_quiet:
        _CONSOLE.say(line)


def waiting(holder: object) -> None:
    """Say that another process is timing on this host, before waiting for it."""
    say(f"waiting until this host is not timing: {holder or 'another process of ktbench'}")


def warn(line: str) -> None:
    """Print why something failed, even if progress is quiet."""
    _CONSOLE.say(line)


def status(line: str) -> None:
    """Show progress: on a terminal in the replaceable line, otherwise in a line once a minute."""
    if _CONSOLE.is_quiet:
        return
    if sys.stderr.isatty():
        _CONSOLE.replace(line)
    elif monotonic() - _CONSOLE.said_s >= _STATUS_EVERY_S:
        _CONSOLE.said_s = monotonic()
        _CONSOLE.say(line)


def clear_status() -> None:
    """Remove the replaceable line before anything else is printed."""
    _CONSOLE.clear()


def cell_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Name of each cell by its key: its part, then its name in that part."""
    parts = dict.fromkeys(cell.part for cell in cells)
    return {
        key: f"{part} {name}".strip()
        for part in parts
        for key, name in names_in_part([cell for cell in cells if cell.part == part]).items()
    }


def names_in_part(cells: Sequence[Cell]) -> dict[str, str]:
    """Name of each cell of one part by its key: its label, and its values of the settings that vary in the part."""
    settings = cell_settings(cells)
    keys = varying(settings.values())
    points = {cell.key: setting_words({key: settings[cell.key].get(key) for key in keys}) for cell in cells}
    return {cell.key: f"{cell.label} ({points[cell.key]})" if keys else cell.label for cell in cells}


def setting_words(settings: dict[str, Setting]) -> str:
    """`prompt 8, batch 1`."""
    return ", ".join(setting_in_words(key, value) for key, value in settings.items())


@contextmanager
def loading(cell: Cell) -> Iterator[Callable[[Loading], None]]:
    """Show that a worker loads the weights of a cell; call the result with each report of progress."""
    (status if sys.stderr.isatty() else say)(f"loading {cell.spec.summary}")
    with loading_line() as show:
        yield show


@contextmanager
def loading_line() -> Iterator[Callable[[Loading], None]]:
    """Shows loading progress: on a terminal in one line, removed at the end, otherwise a line every 10 s."""
    line = LoadingLine(sys.stderr)
    try:
        yield line.show
    finally:
        line.clear()


_LINE_EVERY_S = 10.0
_UNITS = ((2**30, "GiB"), (2**20, "MiB"))


class LoadingLine:
    """The line about current loading, with the remaining time at the stage's speed so far."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._stream, self._clock, self._said_s = stream, clock, clock()
        self._stage, self._began, self._is_shown = "", (0.0, 0), False

    def show(self, report: Loading) -> None:
        """Replace the line with this report; if lines cannot be replaced, print one now and then."""
        if _CONSOLE.is_quiet:
            return
        if report.stage != self._stage:
            self._stage, self._began = report.stage, (self._clock(), report.done_bytes)
        if self._stream.isatty():
            self._print(f"{_CLEARED}  {self._text(report)}", end="")
            self._is_shown = True
        elif self._clock() - self._said_s >= _LINE_EVERY_S:
            self._said_s = self._clock()
            self._print(f"  {self._text(report)}")

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._print(_CLEARED, end="")

    def _text(self, report: Loading) -> str:
        size, unit = next((unit_ for unit_ in _UNITS if report.total_bytes >= unit_[0]), _UNITS[-1])
        left_s = self._left_s(report)
        left = "" if left_s is None else f", {_minutes(left_s)} left"
        done, total = report.done_bytes / size, report.total_bytes / size
        return f"{one_line(report.doing)}, {done:.1f} of {total:.1f} {unit}{left}"

    def _left_s(self, report: Loading) -> float | None:
        began_s, first = self._began
        done = report.done_bytes - first
        return None if done <= 0 else (self._clock() - began_s) * (report.total_bytes - report.done_bytes) / done

    def _print(self, text: str, end: str = "\n") -> None:
        with suppress(OSError):
            print(text, end=end, file=self._stream, flush=True)


def _minutes(seconds: float) -> str:
    """`0:48`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def trial_progress(cells: Sequence[Cell]) -> Callable[[Record], None]:
    """A function that shows how a trial of one of these cells ended.

    A failure is a permanent line, once for each reason; cells that cannot run are known beforehand, and their rows say
    why.
    """
    names, units = cell_names(cells), {cell.key: cell.spec.workload.unit for cell in cells}
    width, failures = max((len(name) for name in names.values()), default=0), set[tuple[str, str]]()

    def show(record: Record) -> None:
        trial = "simulated" if record.provenance == "simulated" else f"round {record.round + 1:>2}"
        where = f"  {trial}  {names[record.cell]:<{width}}"
        if record.samples_s:
            status(f"{where} {median(record.samples_s) * 1e3:.2f} ms/{units[record.cell]}")
        elif record.outcome is not Outcome.UNSUPPORTED and (failure := (record.cell, record.why)) not in failures:
            failures.add(failure)
            say(f"{where} {record.outcome}: {record.why}")

    return show


class RoundProgress:
    """Prints each cell once, when its interval is narrow enough, and shows what is still open."""

    def __init__(self, cells: Sequence[Cell], names: dict[str, str], measure: MeasureSpec) -> None:
        self._names = {cell.key: names[cell.key] for cell in cells}
        self._width = max((len(name) for name in self._names.values()), default=0)
        self._max_minutes = measure.max_minutes
        self._shown: set[str] = set()

    def round_ended(self, criterion: SweepCriterion) -> None:
        """Print the cells that the last round has completed, and show what the criterion waits for."""
        cells = criterion.progress()
        for cell in cells:
            if cell.is_done and cell.step_s is not None and cell.cell.key not in self._shown:
                self._shown.add(cell.cell.key)
                rounds = f"{cell.rounds} round{'' if cell.rounds == 1 else 's'}"
                say(f"  {self._names[cell.cell.key]:<{self._width}}  {_progress_words(cell)}, {rounds}")
        done = sum(cell.is_done for cell in cells)
        minutes = f"{criterion.minutes:.1f} of at most {self._max_minutes:g} minutes"
        status(f"  {done} of {len(cells)} cells done, {minutes}; {criterion.why()}")


def _progress_words(cell: CellProgress) -> str:
    """The median with half the width of its interval, and why the cell is open or has failed."""
    if cell.step_s is None:
        return cell.why
    width = f" ±{cell.step_s.half_width:.1%}" if cell.step_s.sound else ""
    why = f": {cell.why}" if cell.why else ""
    return f"{cell.step_s.mid * 1e3:.2f} ms/{cell.cell.spec.workload.unit}{width}{why}"
