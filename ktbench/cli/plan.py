"""`plan`: what a sweep would do, before anything loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ktbench.cli.what_if import answer, read_what_if
from ktbench.config import RequestPart
from ktbench.host.topology import read_topology
from ktbench.report.conditions import simulated_on
from ktbench.report.text import counted
from ktbench.run.feasibility import Machine
from ktbench.run.progress import names_in_part
from ktbench.run.request import CellPlan, eval_request, show_request
from ktbench.spec.cells import worker_groups
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import MeasureSpec, RunSpec
from ktbench.spec.step.memory import GpuMemory, MemoryEstimate, estimate_memory, gpu_workers
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import SweepSpec
from ktbench.spec.weights import StoredLayer

_CELL = "cell"
_LEAST_SHOWN = 0.005  # GiB
_PURPOSES = ("original", "packed", "others", "dense", "trained", "cache", "workspace", "fixed")
_GPU_PURPOSES = ("weights", "experts", "cache", "reserve")
_GIB = 2**30
# As runs of four layers took on two cores (reports/recorded): bytes that a core makes and packs in a second, seconds
# that a process takes to start, and those of a short trial with its checks.
_LOADED_PER_S, _LOADING_CORES, _STARTED_S, _TRIAL_S = 0.27 * _GIB, 8, 5.0, 0.5


def run(overrides: Sequence[str]) -> int:
    """Print the plan, or the answer to `what_if`.

    Raises RequestError where what is to be measured would not fit this machine if nothing else were on it.
    """
    if what_if := read_what_if(overrides):
        return answer(what_if)
    request = eval_request(overrides)
    planned = show_request(request)
    if request.notice:
        print(request.notice)
    for part in request.parts:
        print("\n".join(_part_lines(part, planned)))
    if simulated := [cell for cell in planned.simulated if cell.key not in planned.unsupported]:
        print(_simulated_line(simulated))
    if planned.runnable or (planned.here and not planned.simulated):
        print("\n".join((*_stored_lines(planned), *_memory_lines(planned), *_gpu_lines(planned))))
    if planned.runnable and request.suite is not None:
        print("\n".join(_suite_lines(planned, request.suite)))
    if request.is_timed and (planned.runnable or (planned.here and not planned.simulated)):
        print(_rounds_line(planned, request.measure))
        print(_time_line(planned, request.measure))
    if planned.short:
        print(f"not enough memory at the moment: {planned.short}")
    return 0


def _simulated_line(cells: Sequence[Cell]) -> str:
    machines = simulated_on([cell.spec.machine for cell in cells if cell.spec.machine])
    return f"{machines}: {len(cells)} cell{'' if len(cells) == 1 else 's'}, in this process, nothing is loaded"


def _suite_lines(planned: CellPlan, suite: SuiteSpec) -> Iterator[str]:
    """What is asked, then the tasks that cells cannot answer, a line for each reason and set of tasks."""
    limit = "all questions" if suite.limit is None else f"at most {suite.limit} questions"
    tasks = f"{len(suite.tasks)} task{'' if len(suite.tasks) == 1 else 's'}"
    yield f"suite {suite.name}: {tasks} of {limit} each, for {len(planned.runnable)} cells"
    names = names_in_part(planned.runnable)
    found: dict[tuple[str, str], list[str]] = {}
    for cell in planned.runnable:
        for why, lacking in _unanswered(cell.spec, suite).items():
            found.setdefault((", ".join(lacking), why), []).append(names[cell.key])
    for (listed, why), cells in found.items():
        yield f"UNSUPPORTED: {listed} for {', '.join(cells)}: {why}"


def _unanswered(spec: RunSpec, suite: SuiteSpec) -> dict[str, list[str]]:
    """Tasks that will be UNSUPPORTED for a cell, by reason."""
    from ktbench.eval.tasks.sources import inactive_feature

    found: dict[str, list[str]] = {}
    for task in suite.tasks:
        if why := inactive_feature(spec, task):
            found.setdefault(why, []).append(task.name)
    return {why: ["all tasks"] if len(names) == len(suite.tasks) > 1 else names for why, names in found.items()}


def _rounds_line(planned: CellPlan, measure: MeasureSpec) -> str:
    return (
        f"rounds: {measure.min_rounds} to {measure.max_rounds} of {len(planned.runnable)} trials, "
        f"at most {measure.max_minutes:g} minutes of trials, without loading"
        + (f"; weights are loaded anew every {counted(measure.block_rounds, 'round')}" if measure.reloads else "")
    )


def _time_line(planned: CellPlan, measure: MeasureSpec) -> str:
    """About how long it takes: from the least rounds to all minutes, with the loading of weights."""
    groups = worker_groups(planned.runnable)
    needs = [estimate_memory(group, planned.memory) for group in groups]
    cores = min(len(read_topology().core_cpus), _LOADING_CORES)
    loads = measure.reload_blocks * sum(need.original + need.packed for need in needs) / (_LOADED_PER_S * cores)
    load = (loads + _STARTED_S * measure.reload_blocks * len(groups)) / 60
    most = load + measure.max_minutes
    least = load + min(measure.max_minutes, measure.min_rounds * len(planned.runnable) * _TRIAL_S / 60)
    return f"time: about {least:.0f} to {most:.0f} minutes, {load:.1f} of them to load weights (estimated)"


def _part_lines(part: RequestPart, planned: CellPlan) -> Iterator[str]:
    """The part's heading where there are several, then its cells."""
    cells = [cell for cell in planned.cells if cell.part == part.name]
    if part.sweep.is_published_alone:
        yield f"{part.name or part.sweep.name}: {part.title} (nothing to run, published numbers are shown)"
        return
    if part.name:
        yield f"{part.name}: {part.title} ({len(cells)} cells)"
    indent = "  " if part.name else ""
    names, kinds = names_in_part(cells), {cell.spec.summary for cell in cells}
    width = max(len(name) for name in (*names.values(), _CELL))
    common = kinds.pop() if len(kinds) == 1 else ""  # is said once
    yield f"{indent}{_CELL:<{width}}  {common or 'what runs'}"
    for cell in cells:
        why = planned.unsupported.get(cell.key)
        said = "" if common else cell.spec.summary, f"dropped: {why}" if why else "runs" * bool(common)
        yield f"{indent}{names[cell.key]:<{width}}  {'; '.join(filter(None, said))}"
    yield from (f"{indent}{line}" for line in _dropped_lines(part.sweep))


def _dropped_lines(sweep: SweepSpec) -> Iterator[str]:
    """Combinations that the design has no arm for, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in sweep.dropped:
        reasons.setdefault(one.why, []).append(one.arm)
    for why, arms in reasons.items():
        yield f"dropped from the {sweep.design}: {', '.join(arms)}: {why}"


def _stored_lines(planned: CellPlan) -> Iterator[str]:
    """What the experts of checkpoints are in their files, a line for each that is quantised."""
    specs = {spec.model.path: spec for cell in planned.runnable if (spec := cell.spec).model.stored}
    for path, spec in specs.items():
        model = spec.model
        nbytes = sum(layer.nbytes for layer in model.stored_here)
        bits = 8 * nbytes / model.shape.routed_params
        formats = Counter(_formats_word(layer) for layer in model.stored_here)
        listed = ", ".join(f"{word} in {counted(count, 'layer')}" for word, count in formats.items())
        yield f"experts in {path}: {nbytes:,} bytes ({nbytes / _GIB:.2f} GiB), {bits:.2f} bits a weight: {listed}"


def _formats_word(layer: StoredLayer) -> str:
    """`q4_k`, or `gate and up q4_k, down q6_k`."""
    if len(set(layer.formats)) == 1:
        return layer.gate
    both = f"gate and up {layer.gate}" if layer.gate == layer.up else f"gate {layer.gate}, up {layer.up}"
    return f"{both}, down {layer.down}"


def _memory_lines(planned: CellPlan) -> Iterator[str]:
    total = 0
    for group in worker_groups(planned.runnable):
        need, spec = estimate_memory(group, planned.memory), group[0].spec
        total += need.total
        yield f"worker: {spec.model.name} {spec.precision}: {_bytes_of(need, _PURPOSES)}"
    yield f"memory: {planned.needed_bytes / _GIB:.1f} GiB (estimated)"
    if len(blocks := planned.blocks) > 1:
        sizes = ", ".join(str(len(block)) for block in blocks)
        yield (
            f"all workers together would take {total / _GIB:.1f} GiB: {len(blocks)} blocks of {sizes} cells are "
            "measured one after the other, each with a part of the minutes; cells are compared within a block only"
        )


def _gpu_lines(planned: CellPlan) -> Iterator[str]:
    if all(cell.spec.engine.device == "cpu" for cell in planned.runnable):
        return
    machine, total = Machine.local(), 0
    for spec, need in gpu_workers(planned.runnable, machine.nodes):
        total += need.total
        yield f"worker on the GPU: {spec.model.name} {spec.precision}: {_bytes_of(need, _GPU_PURPOSES)}"
    yield f"GPU memory: {total / _GIB:.1f} GiB (estimated) of {machine.gpu_bytes / _GIB:.1f} GiB"


def _bytes_of(need: MemoryEstimate | GpuMemory, purposes: Sequence[str]) -> str:
    shares = ((name, getattr(need, name) / _GIB) for name in purposes)
    return ", ".join(f"{name} {share:.2f} GiB" for name, share in shares if share >= _LEAST_SHOWN)
