"""Speeds that users report of their own machines (`reports/users`), against the simulator."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf, log
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.resources import data_folder
from ktbench.sim.advising.catalogue import catalogue, read_box
from ktbench.sim.calibration import Calibration, calibration_yaml, read_calibration
from ktbench.sim.errors import COVERAGE, interval
from ktbench.sim.judging.fitting import limits
from ktbench.sim.judging.validation import Judgement, Quality, quality_of
from ktbench.sim.simulation import step_seconds, with_all_features
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import FORMATS, Precision
from ktbench.spec.wire import from_plain

# The calibration of each program by the beginning of its name.
_CALIBRATIONS = {
    "KTransformers 0.2": "kt_llamafile",
    "KTransformers 0.3": "ktransformers",
    "kt-kernel": "kt_sglang",
    "ik_llama.cpp": "llama_cpp",
    "llama.cpp": "llama_cpp",
}
# One page has the reports that constants are fitted on, of two of its machines: one socket, nothing else left out.
FITTED = "llama_cpp"
_FITTED_PAGE = "https://github.com/ikawrakow/ik_llama.cpp/discussions/258"
_FITTED_CPUS = ("Threadripper PRO 7965WX", "EPYC 9355")
_FITTED_CONSTANTS = ("decode_stream", "kernel_us")
# Formats by which the bits of a weight are bracketed.
_LADDER: tuple[Precision, ...] = ("q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class UserReport:
    """One report of decode for a single request: `tokens_per_s` at `context` tokens.

    `cpu`, `ram` and `gpu` are parts of the catalogue, of the `sockets` that work. `bits` are those of a weight of the
    file, `device` the precision of what is not a routed expert. `on_gpu` is the share of routed experts that live with
    the GPU, `experts` how many a token selects, None for as many as the model says. `numa`: each socket has the weights
    that it reads. `open` says what the report does not tell, and what was taken for it.
    """

    id: str
    link: str
    date: str
    program: str
    cpu: str
    sockets: int
    ram: str
    gpu: str
    model: str
    quantisation: str
    bits: float
    device: Precision
    context: int
    on_gpu: float
    experts: int | None
    numa: bool
    tokens_per_s: float
    open: str

    def __post_init__(self) -> None:
        if not self.link.startswith("https://") or not self.date:
            raise ValueError(f"{self.id}: needs a link and a date")
        if min(self.tokens_per_s, self.bits, self.context) <= 0:
            raise ValueError(f"{self.id}: speed, bits and context must be above 0")
        self.calibration  # noqa: B018  (refuses an unknown program)

    @property
    def machine(self) -> str:
        """The machine in words, as the catalogue names its parts."""
        return read_box(self.cpu, self.sockets, self.ram, self.gpu).title

    @property
    def family(self) -> str:
        """The program without its version."""
        return self.program.split(" 0.")[0]

    @property
    def fitted(self) -> bool:
        """Whether constants of its program are fitted on it."""
        return self.link == _FITTED_PAGE and self.sockets == 1 and self.cpu in _FITTED_CPUS

    @property
    def calibration(self) -> str:
        """The calibration that the program is simulated with. Raises ValueError for a program without one."""
        found = [name for start, name in _CALIBRATIONS.items() if self.program.startswith(start)]
        if not found:
            raise ValueError(f"{self.id}: program={self.program}: begins with none of {', '.join(_CALIBRATIONS)}")
        return found[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedReport:
    """A report with its simulated speed and the interval of that, both in tokens/s."""

    report: UserReport
    simulated: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Simulated over reported speed, less 1."""
        return self.simulated / self.report.tokens_per_s - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was reported."""
        return self.low <= self.report.tokens_per_s <= self.high


def read_user_reports(path: Path | None = None) -> tuple[UserReport, ...]:
    """The reports that ship, or those of a file like theirs. Raises ValueError with file and line."""
    path = path or data_folder("reports") / "users" / "machines.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        columns = [one.name for one in fields(UserReport)]
        if rows.fieldnames != columns:
            raise ValueError(f"{path}:1: columns must be, in this order, {', '.join(columns)}")
        return tuple(_report(row, f"{path}:{rows.line_num}") for row in rows)


def _report(row: dict[str, str], where: str) -> UserReport:
    content: dict[str, Any] = dict(row)
    try:
        content |= {name: int(row[name]) for name in ("sockets", "context")}
        content |= {name: float(row[name]) for name in ("bits", "on_gpu", "tokens_per_s")}
        content |= {"experts": int(row["experts"]) if row["experts"] else None, "numa": row["numa"] == "yes"}
        return from_plain(content, UserReport)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def judge_reports(
    reports: Sequence[UserReport],
    compose: Callable[[Sequence[str]], RunSpec],
    calibrations: Mapping[str, Calibration] = MappingProxyType({}),
) -> tuple[JudgedReport, ...]:
    """Every report simulated; `compose` returns the cell of some overrides, `calibrations` replace those that ship.

    The interval of a report comes from the errors of held-out reports of other pages alone.
    """
    cell_of = _cells(compose)
    costs = {name: calibrations.get(name) or read_calibration(name) for name in {one.calibration for one in reports}}
    speeds = {one.id: simulated_speed(one, cell_of(one.model), costs[one.calibration]) for one in reports}
    errors = {one.id: log(speeds[one.id] / one.tokens_per_s) for one in reports}

    def judged(report: UserReport) -> JudgedReport:
        others = [one for one in reports if one.link != report.link and not one.fitted]
        low, high = interval([errors[one.id] for one in others], speeds[report.id])
        return JudgedReport(report=report, simulated=speeds[report.id], low=low, high=high)

    return tuple(judged(one) for one in reports)


def fit_reports(reports: Sequence[UserReport], compose: Callable[[Sequence[str]], RunSpec]) -> Calibration:
    """The calibration of llama.cpp, fitted on the reports that are for that: least squares of log ratios."""
    from scipy.optimize import least_squares  # takes 0.2 s to load: only for those who need it

    cell_of, start = _cells(compose), read_calibration(FITTED)
    seen = [one for one in reports if one.fitted]
    low, high = zip(*(limits(start, name) for name in _FITTED_CONSTANTS), strict=True)

    def changed(values: NDArray[np.float64]) -> Calibration:
        return start.changed(dict(zip(_FITTED_CONSTANTS, values.tolist(), strict=True)))

    def residuals(values: NDArray[np.float64]) -> list[float]:
        return [log(simulated_speed(one, cell_of(one.model), changed(values)) / one.tokens_per_s) for one in seen]

    first = [start[name] for name in _FITTED_CONSTANTS]
    return changed(least_squares(residuals, first, bounds=(low, high), diff_step=1e-3).x)


def _cells(compose: Callable[[Sequence[str]], RunSpec]) -> Callable[[str], RunSpec]:
    """A decode cell of a model, composed once."""
    return cache(lambda model: compose((f"model={model}", "machine=paper_a100", "workload=decode")))


def simulated_speed(report: UserReport, cell: RunSpec, cost: Calibration) -> float:
    """Tokens/s of a report's cell, `cell` being any decode cell of its model.

    The time of a step is that of two formats, interpolated by the bits of a weight; below the first extrapolated.
    """
    low, high = _bracket(report.bits)
    times = [step_seconds(_spec(report, cell, cost, precision), cost) for precision in (low, high)]
    share = (report.bits - _bits(low)) / (_bits(high) - _bits(low))
    return 1 / (times[0] + share * (times[1] - times[0]))


def _bracket(bits: float) -> tuple[Precision, Precision]:
    """The formats next to so many bits; beyond the last, and below the first, the two there."""
    above = next((rung for rung, one in enumerate(_LADDER) if _bits(one) > bits), len(_LADDER))
    first = min(max(above - 1, 0), len(_LADDER) - 2)
    return _LADDER[first], _LADDER[first + 1]


def _bits(precision: Precision) -> float:
    row = FORMATS[precision]
    return row.block_bytes * 8 / row.group if row.block_bytes else row.bits


def _spec(report: UserReport, cell: RunSpec, cost: Calibration, precision: Precision) -> RunSpec:
    box = read_box(report.cpu, report.sockets, report.ram, report.gpu)
    machine = box.machine(report.calibration)
    read = min(machine.read_gb_per_s, _unpacked_gb_per_s(report, cost, precision))
    machine = replace(machine, read_gb_per_s=read, remote_gb_per_s=min(read, machine.remote_gb_per_s))
    placement = PlacementSpec(policy="front_loading", ratio=report.on_gpu) if report.on_gpu else PlacementSpec()
    top_k = cell.model.shape.top_k
    spec = with_all_features(
        replace(
            cell,
            machine=machine if report.numa else _one_socket(machine),
            precision=precision,
            device_precision=report.device,
            workload=replace(cell.workload, prompt=report.context),
        )
    )
    engine = replace(
        spec.engine,
        numa=spec.engine.numa and report.numa,
        placement=placement,
        skipping=top_k - (report.experts or top_k),
    )
    return replace(spec, engine=engine)


def _unpacked_gb_per_s(report: UserReport, cost: Calibration, precision: Precision) -> float:
    """Read bandwidth that keeps all cores busy, where their format takes them longer than memory; else infinity."""
    name = f"unpack_{report.quantisation.removeprefix('UD-').lower()}"
    if name not in cost.constants:
        return inf
    cpu = catalogue().cpus[report.cpu]
    weights_per_ns = cost[name] * report.sockets * cpu.cores * cpu.ghz
    return weights_per_ns * _bits(precision) / 8 / cost["decode_stream"]


def _one_socket(machine: MachineSpec) -> MachineSpec:
    """The machine as a program sees it that leaves its weights where the system puts them.

    That is at the socket whose thread reads the file: its bandwidth is all that there is. Users see no gain from the
    second socket then (ik_llama.cpp, discussions 258 and 396).
    """
    return replace(machine, domains=1, remote_gb_per_s=machine.read_gb_per_s)


def report_groups(judged: Sequence[JudgedReport]) -> Iterator[tuple[str, bool, Quality, float]]:
    """Held-out reports of all programs and of each, then the fitted ones: errors, and the share within intervals."""
    held_out = [one for one in judged if not one.report.fitted]
    yield "all", False, *_judgement(held_out)
    for name in dict.fromkeys(one.report.family for one in held_out):
        yield name, False, *_judgement([one for one in held_out if one.report.family == name])
    if fitted := [one for one in judged if one.report.fitted]:
        yield fitted[0].report.family, True, *_judgement(fitted)


def _judgement(group: Sequence[JudgedReport]) -> tuple[Quality, float]:
    return quality_of([one.error for one in group]), sum(one.covered for one in group) / len(group)


def judged_lines(judged: Sequence[JudgedReport]) -> Iterator[list[str]]:
    """Rows of `judged.csv`, the heading first."""
    yield ["id", "reported", "simulated", "low", "high", "error", "fitted", "covered"]
    for one in judged:
        speeds = (one.report.tokens_per_s, one.simulated, one.low, one.high)
        yield [
            one.report.id,
            *(f"{speed:.4g}" for speed in speeds),
            f"{one.error:.4f}",
            str(one.report.fitted),
            str(one.covered),
        ]


def judge_users(compose: Callable[[Sequence[str]], RunSpec], *, fit: bool) -> Judgement:
    """The reports that ship, judged; with `fit` after the constants of llama.cpp were fitted on some of them.

    `compose` returns the cell of some overrides of the configuration.
    """
    reports = read_user_reports()
    calibrations = {FITTED: fit_reports(reports, compose)} if fit else {}
    judged = judge_reports(reports, compose, calibrations)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(judged_lines(judged))
    files = {"judged.csv": table.getvalue()}
    values = {
        "judged": judged,
        "groups": list(report_groups(judged)),
        "pages": len({one.link for one in reports}),
        "meant": COVERAGE,
    }
    files |= {f"{name}.yaml": calibration_yaml(one) for name, one in calibrations.items()}
    return Judgement(values=values, files=files)
