"""How far off a simulated speed is, by the errors of held-out cells and reports that ship."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import exp, floor, log

import numpy as np

from ktbench.resources import data_folder
from ktbench.sim.workloads import WORKLOADS
from ktbench.spec.features import Phase

COVERAGE = 0.9  # what intervals are meant to hold


def interval(errors: Sequence[float], speed: float) -> tuple[float, float]:
    """Where 90 % of what is measured lies for a simulated speed, by logarithms of simulated over measured elsewhere.

    The order statistics are those of a conformal interval (Vovk et al. 2005): the next error lies between them with at
    least that probability, if it is as likely to be anywhere in the order as any other.
    """
    found, count = sorted(errors), len(errors)
    outside = floor((1 - COVERAGE) / 2 * (count + 1) + 1e-9)
    if not outside:
        raise ValueError(f"{count} errors are too few for an interval of {COVERAGE:.0%}")
    return speed / exp(found[count - outside]), speed / exp(found[outside - 1])


def speed_interval(speed: float, phase: Phase) -> tuple[float, float]:
    """Where 90 % of measured speeds lie for a simulated one, of decode or prefill; see `interval`."""
    if WORKLOADS[phase].errors == "users":
        return interval(shipped_errors(), speed)
    return interval([log(1 + error) for error in held_out_errors(phase)], speed)


def speed_text(speed: float) -> str:
    """`21.7`, `8,850`: to three significant digits."""
    return f"{float(f'{speed:.3g}'):,g}"


def comparison_error() -> float:
    """How far apart two simulated speeds must be, as a relative error: what 90 % of held-out decode cells are within.

    Machine and program of those are known, so that what is unknown about a user's machine is not part of it: in a
    comparison it is off by the same factor on both sides.
    """
    return float(np.quantile(np.abs(held_out_errors("decode")), 0.9))


@cache
def held_out_errors(phase: str) -> tuple[float, ...]:
    """Relative errors of held-out published cells of KTransformers in a phase (`reports/validation/cells.csv`)."""
    return tuple(
        float(row["error"])
        for row in _rows("validation", "cells.csv")
        if row["phase"] == phase and row["kind"] == "step_s" and row["fitted"] == "False" and row["arm"] != "base"
    )


@cache
def shipped_errors() -> tuple[float, ...]:
    """Logarithms of simulated over reported speed of held-out reports, as `validate users=true` found them last."""
    return tuple(log(1 + float(row["error"])) for row in _rows("users", "judged.csv") if row["fitted"] == "False")


def _rows(folder: str, name: str) -> Iterator[Mapping[str, str]]:
    with (data_folder("reports") / folder / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
