"""A run as a Python object: frames, figures, tables, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ktbench.api import frames
from ktbench.files import whole_file
from ktbench.report.documents import Document, documents_of, page_of
from ktbench.report.markdown import table_grid
from ktbench.report.write import FORMATS, write_report
from ktbench.resources import install_command
from ktbench.results import Run
from ktbench.results.quantities.frame import summary
from ktbench.spec.errors import RequestError, instead

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Result:
    """The contents of a run; frames are built on first access.

    `run` is the log read back, as used by the rest of ktbench. Notebooks display a result as its tables.
    """

    run: Run

    @property
    def name(self) -> str:
        """The name of the run, which `ktbench.load` and the verbs `report` and `compare` take."""
        return self.run.header.run

    @property
    def folder(self) -> Path:
        """Where its log is."""
        return self.run.folder

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row for each cell, as in table and CSV: `step_s`, `tokens_per_s`, `speedup` … with `_low` and `_high`."""
        return summary(self.run)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """A row for each timed step; `cell` joins it with `rows`."""
        return frames.samples_frame(self.run)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """For an evaluation, a row for each score of each cell, with its interval and its change over the baseline."""
        return frames.scores_frame(self.run)

    @cached_property
    def answers(self) -> pd.DataFrame:
        """For an evaluation, a row for each answer."""
        return frames.answers_frame(self.run)

    @cached_property
    def published(self) -> pd.DataFrame:
        """For a run with published numbers, a row for each value, with `provenance` and `unit`."""
        return frames.published_frame(self.run)

    @cached_property
    def _documents(self) -> tuple[Document, ...]:
        return documents_of(self.run)

    @cached_property
    def _figures_by_name(self) -> Mapping[str, Document]:
        return {document.table.figure_name: document for document in self._documents if document.has_figure}

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of its figures, as in their file names."""
        return tuple(self._figures_by_name)

    def figure(self, name: str | None = None) -> Figure:
        """A figure, by default the first. Raises RequestError for a name not in `figures`."""
        if not self._figures_by_name:
            raise RequestError(f"{self.name}: has no figure, because it has no planned cells")
        chosen = self.figures[0] if name is None else name
        if chosen not in self._figures_by_name:
            raise RequestError(f"figure {chosen!r}: unknown{instead(chosen, self.figures)}")
        return self._figures_by_name[chosen].draw()

    @property
    def markdown(self) -> str:
        """Its tables with conditions, methods and notes, as in `report/table.md`."""
        return page_of(self.run, self._documents)

    def report(self, *formats: str) -> list[Path]:
        """Write tables and figures into its folder, all formats by default. Returns the paths written.

        Raises RequestError for an unknown format, and NotWritten.
        """
        return write_report(self.run, formats or FORMATS, self._documents)

    def to_parquet(self, folder: str | Path | None = None) -> list[Path]:
        """Write every frame that has rows as `<frame>.parquet`, by default next to the report. Returns the paths.

        Raises RequestError if pyarrow is not installed, and NotWritten.
        """
        if find_spec("pyarrow") is None:
            raise RequestError(f"to_parquet: pyarrow is not installed: {install_command('parquet')}")
        into = self.folder / "report" if folder is None else Path(folder)
        return [_write_parquet(into / f"{name}.parquet", frame) for name, frame in self._frames().items() if len(frame)]

    def _frames(self) -> dict[str, pd.DataFrame]:
        names = ("rows", "samples", "scores", "answers", "published")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        cells = len(self.run.header.cells)
        return f"<ktbench run {self.name}: {self.run.header.title}, {cells} cells>"

    def _repr_markdown_(self) -> str:
        return "\n\n".join(_display_text(document) for document in self._documents)


def _display_text(document: Document) -> str:
    table = document.table
    return "\n".join([f"**{table.title}**", "", *table_grid(table, table.cells), *_notes(table.notes)])


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"- {note}" for note in notes)] if notes else []


def _write_parquet(path: Path, frame: pd.DataFrame) -> Path:
    with whole_file(path) as part:
        frame.to_parquet(part, engine="pyarrow", index=False)
    return path
