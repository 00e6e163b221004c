"""`validate run=RUN`: cells that were measured, simulated on the machine that measured them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ktbench.cli.progress import say
from ktbench.results import Run, read_run
from ktbench.results.find import find_run
from ktbench.sim.calibration import read_calibration
from ktbench.sim.judging import Quality, quality_of
from ktbench.sim.local_fit import Judged, judge
from ktbench.sim.observation import Observed, observe, recorded_machine
from ktbench.sim.simulation import ON_CORES
from ktbench.spec.errors import RequestError


def validate_run(names: str, folder: Path) -> int:
    """Prints and writes the errors of every timed cell of the runs named, by phase. Raises RequestError for none."""
    runs = [read_run(find_run(name)) for name in names.split(",")]
    judged = [one for run in runs for seen in _observed(run) for one in _judged(seen)]
    if not judged:
        raise RequestError(f"validate run={names}: no cell was timed that the machine model knows")
    lines = [*_lines(judged, [run.header.run for run in runs])]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "validation.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print("\n".join(lines))
    print(f"wrote {path}")
    return 0


def _observed(run: Run) -> Iterator[Observed]:
    """Our own cells that were timed, each at the roofs next to its turns."""
    machine = recorded_machine(run.environments[0], run.latest().values())
    for cell in run.header.cells:
        if cell.role == "arm" and cell.spec.machine is None and cell.spec.system == "ktbench":
            seen = observe(cell.spec, run.of_cell(cell.key), machine)
            if seen is not None:
                yield seen


def _judged(seen: Observed) -> list[Judged]:
    """The cell simulated; none, with a line that says why, where that cannot be."""
    try:
        return judge([seen], read_calibration(ON_CORES))
    except ValueError as error:
        say(f"left out: {seen.spec.label}, {replace(seen.spec, machine=None).summary}: {error}")
        return []


def _lines(judged: Sequence[Judged], runs: Sequence[str]) -> Iterator[str]:
    yield f"# The machine model against runs: {', '.join(runs)}"
    yield ""
    yield "Measured: medians over rounds. Simulated on the same machine, at the roofs next to each turn."
    yield "Errors of the time of a step, simulated over measured, less 1."
    yield ""
    yield "| cells | n | median | 90 % | maximum | bias |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for name, group in _groups(judged):
        yield f"| {name} | {_figures(quality_of([one.error for one in group]))} |"
    yield ""
    yield "| cell | measured (ms) | simulated (ms) | error | |"
    yield "| --- | --: | --: | --: | --- |"
    for one in judged:
        times = f"{one.measured_s * 1e3:.4g} | {one.simulated_s * 1e3:.4g}"
        fitted = "fitted" if one.fitted else ""
        cell = f"{one.spec.label}, {replace(one.spec, machine=None).summary}"
        yield f"| {cell} | {times} | {one.error:+.1%} | {fitted} |"


def _groups(judged: Sequence[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    """All held out, then by phase; those that constants were fitted on apart."""
    yield from _some("held out, all", [one for one in judged if not one.fitted])
    for phase in ("layer", "prefill", "decode"):
        mine = [one for one in judged if one.spec.workload.phase == phase]
        yield from _some(f"held out, {phase}", [one for one in mine if not one.fitted])
    yield from _some("fitted", [one for one in judged if one.fitted])


def _some(name: str, group: list[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    if group:
        yield name, group


def _figures(found: Quality) -> str:
    return f"{found.cells} | {found.median:.1%} | {found.p90:.1%} | {found.worst:.1%} | {found.bias:+.1%}"
