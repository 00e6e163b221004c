"""What it would take to measure on this machine what a part shows as published and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING

from ktbench.report.machine import facts_of
from ktbench.report.paper_lines import PaperLine
from ktbench.report.parts import the_part
from ktbench.report.row import Row
from ktbench.report.text import DASH
from ktbench.results.store import Run
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes

if TYPE_CHECKING:
    from ktbench.report.documents import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorSummary:
    """Relative errors on throughput of `n` lines: median, 90th percentile (linear between order statistics) and largest
    of their sizes, and `bias`, the mean with its sign.
    """

    n: int
    median: float
    p90: float
    largest: float
    bias: float

    @property
    def sentence(self) -> str:
        """The summary in one line, in percent."""
        middle, most, largest = (f"{100 * value:.1f} %" for value in (self.median, self.p90, self.largest))
        cells = "1 cell" if self.n == 1 else f"{self.n} cells"
        return f"{cells}: median {middle}, 90 % within {most}, largest {largest}, bias {100 * self.bias:+.1f} %"


def error_summary(lines: Sequence[PaperLine]) -> ErrorSummary | None:
    """Summary over the lines that have an error, those that repeat another number left out; None where none has."""
    errors = [line.error for line in lines if line.error is not None and line.repeats is None]
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    p90 = sizes[0] if len(sizes) == 1 else quantiles(sizes, n=10, method="inclusive")[-1]
    return ErrorSummary(n=len(sizes), median=median(sizes), p90=p90, largest=sizes[-1], bias=mean(errors))


HEADINGS = ("part", "published", "simulated", "median error (%)", "90 % within (%)", "largest (%)", "bias (%)")

NUMERIC = (False, *[True] * (len(HEADINGS) - 1))


def overview(papers: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Cells below HEADINGS: a row for each part, and where there are several one for all; repeats count once."""
    for paper in papers:
        yield _row(paper.table.title, paper.lines)
    if len(papers) > 1:
        yield _row("all parts", [line for paper in papers for line in paper.lines])


def _row(title: str, lines: Sequence[PaperLine]) -> tuple[str, ...]:
    published = str(len({line.id for line in lines if line.id}))
    errors = error_summary(lines)
    if errors is None:
        return (title, published, *[DASH] * (len(HEADINGS) - 2))
    sizes = (errors.median, errors.p90, errors.largest)
    return (title, published, str(errors.n), *(f"{100 * size:.1f}" for size in sizes), f"{100 * errors.bias:+.1f}")


_GIB = 2**30


def unmeasured_sentences(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Iterator[str]:
    """Why no line has a measured value: what models need, what this machine has, and how to measure; else nothing."""
    if any(line.measured is not None for line in lines):
        return
    if any(line.phase == "accuracy" for line in lines):
        yield "Accuracy is not simulated."
    if any(not row.simulated for row in rows):
        return
    specs = [row.spec for row in rows if row.spec.machine is not None]
    if not specs:
        return
    total = facts_of(run).get("memory_total_gib")
    there = f"; this machine has {total} GiB" if total else ""
    needs = ", ".join(dict.fromkeys(map(_need, specs)))
    machine = specs[0].machine.name if specs[0].machine else ""
    yield (
        f"Nothing was measured here, as no cell of this machine was asked for: {_command(run, machine)} measures what "
        f"fits. Weights take {needs}{there}."
    )


def _command(run: Run, machine: str) -> str:
    """The sweep with this machine beside the one on paper; where it has several parts, in words."""
    both, command = f"machine={machine},here", " ".join(run.header.command)
    alone = not the_part(run).name and "machine=" not in command
    return f"`{command} {both}`" if alone else f"{both} after the ablation of this part alone"


def _need(spec: RunSpec) -> str:
    """`1,248 GiB (deepseek_v3, bf16)`; of a layer alone what its experts take."""
    return f"{_weight_bytes(spec) / _GIB:,.{_places(spec)}f} GiB ({spec.model.name}, {spec.precision})"


def _places(spec: RunSpec) -> int:
    return 0 if _weight_bytes(spec) >= 10 * _GIB else 1


def _weight_bytes(spec: RunSpec) -> int:
    shape = spec.model.shape
    one = shape.experts * expert_bytes(shape, spec.precision)
    if spec.workload.phase == "layer":
        return one
    return shape.moe_layers * one + dense_bytes(shape, spec.device_precision)
