"""Tables of any kind of lines: columns say how a line reads; what all lines share moves into sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ktbench.report.text import names_by
from ktbench.results import Run
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.text import DASH, dashed
from ktbench.results.run import the_part
from ktbench.results.settings import Setting, shown_setting
from ktbench.spec.sweep import FigureKind

T = TypeVar("T")


@dataclass(frozen=True)  # with slots `Column[Row](...)` fails
class Column(Generic[T]):
    """A heading with its unit, and how a line reads below it.

    `movable`: where all lines read the same, a sentence says it once instead; `with_dashes`: only where none is empty.
    `numeric` columns align right, `key` columns are those that a table in a paper has room for. A column in which every
    line reads as one of `blanks` is left out.
    """

    heading: str
    write: Callable[[T], str]
    _: KW_ONLY
    movable: bool = False
    with_dashes: bool = False
    numeric: bool = True
    key: bool = False
    blanks: tuple[str, ...] = (DASH,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A grid below a table: the first column names its lines, the others are numbers."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """`cells` and `control_cells` have one text for each column. `notes` say why a cell holds a dash or is in doubt
    and what formats peers run, `remarks` are the systems' own.

    `part` is the name of the part of the run that it shows, empty where the run has one part; `figure` the kind of the
    figure beside it, `headline` stands above that: model, work, precision and machine.
    """

    part: str
    figure: FigureKind
    title: str
    headline: str = ""
    conditions: tuple[str, ...]
    methods: tuple[str, ...]
    columns: tuple[Column[Any], ...]
    cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    figure_caption: str
    commands: tuple[tuple[str, str], ...]
    control_cells: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of its columns."""
        return tuple(column.heading for column in self.columns)

    @property
    def figure_name(self) -> str:
        """Name of the figure's files without their endings; published numbers have one of their own."""
        return named("published" if self.figure == "paper" else "figure", self.part)

    def short(self) -> Table:
        """The table of its key columns; all of them where none is."""
        kept = [number for number, column in enumerate(self.columns) if column.key]

        def only(lines: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(line[number] for number in kept) for line in lines)

        columns = tuple(self.columns[number] for number in kept)
        short = replace(self, columns=columns, cells=only(self.cells), control_cells=only(self.control_cells))
        return short if kept else self


def build_table(
    run: Run,
    columns: Iterable[Column[T]],
    lines: Sequence[T],
    *,
    conditions: Sequence[str],
    controls: Sequence[T] = (),
    **fields: Any,
) -> Table:
    """The table of a run of one part: columns in which lines and `controls` differ, sentences for those they share.

    `fields` are the others of `Table`; title and figure are the part's unless given.
    """
    shown, sentences = split_columns(columns, (*lines, *controls))
    part = the_part(run)
    return Table(
        **{"part": part.name, "figure": part.figure, "title": run.header.title, **fields},
        conditions=(*conditions, *sentences),
        columns=shown,
        cells=cells_of(shown, lines),
        control_cells=cells_of(shown, controls),
    )


def setting_columns(
    keys: Iterable[str], settings: Callable[[T], Mapping[str, Setting]], *, key: bool = False
) -> tuple[Column[T], ...]:
    """A column for each setting that varies between lines."""

    def write(name: str) -> Callable[[T], str]:
        return lambda line: shown_setting(name, settings(line).get(name))

    return tuple(Column(name, write(name), key=key) for name in keys)


def columns_for(
    quantities: Iterable[Quantity[T]], lines: Sequence[T], figure: FigureKind | None = None
) -> tuple[Column[T], ...]:
    """The columns that quantities have in a table of lines beside a figure."""
    return tuple(
        Column(heading, one.text, movable=one.is_movable, numeric=not one.is_text, key=one.is_key, blanks=one.blanks)
        for one in quantities
        if (heading := one.headed(lines, figure))
    )


def columns_within(inner: Callable[[T], Any], columns: Iterable[Column[Any]]) -> Iterator[Column[T]]:
    """Columns of what is within a line, such as its row; a dash where it has none."""
    yield from (replace(column, write=partial(_written_within, inner, column.write)) for column in columns)


def _written_within(inner: Callable[[T], Any], write: Callable[[Any], str], line: T) -> str:
    return dashed(inner(line), write)


def cells_of(columns: Sequence[Column[T]], lines: Iterable[T]) -> tuple[tuple[str, ...], ...]:
    """One text for each column of each line."""
    return tuple(tuple(column.write(line) for column in columns) for line in lines)


def split_columns(columns: Iterable[Column[T]], lines: Sequence[T]) -> tuple[tuple[Column[T], ...], tuple[str, ...]]:
    """Columns to show, and sentences in place of those that read the same in all lines; empty columns are left out."""
    shown, sentences = list[Column[T]](), []
    for column in columns:
        texts = {column.write(line) for line in lines}
        values = texts.difference(column.blanks)
        if values and column.movable and len(texts if column.with_dashes else values) == 1:
            sentences.append(f"{column.heading.capitalize()}: {values.pop()}.")
        elif values:
            shown.append(column)
    return tuple(shown), tuple(sentences)


def grouped(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Of (name, sentence) each sentence once, with all names that it holds for: (`a; b`, sentence)."""
    yield from (("; ".join(names), sentence) for sentence, names in names_by(pairs).items())


def notes_of(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """`base; +v — why`: one note for each sentence, with all names that it holds for."""
    return tuple(f"{names} — {sentence}" for names, sentence in grouped(pairs) if sentence)


def named(what: str, part: str) -> str:
    """Name of a part's files without their endings: `table`, `table-qwen3_layer`."""
    return f"{what}-{part}" if part else what
