"""How far simulated values are from published ones, summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from ktbench.report.paper import PaperLine


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
