"""What holds for the whole run, in sentences: model, work, machine, how numbers were made, ids."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ktbench.core.outcome import Outcome
from ktbench.core.record import RoofSample
from ktbench.core.spec import RunSpec
from ktbench.report.machine import facts_of, machine_sentence, software_sentence
from ktbench.report.row import Row, groups_of
from ktbench.report.settings import varying
from ktbench.report.text import number, ratio
from ktbench.stats.intervals import CONFIDENCE
from ktbench.stats.verdict import MARGIN, Verdict
from ktbench.store import Run

# Core-to-core times further apart than this are more than their own noise.
_MOVED = 1.5


def conditions_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """What was run, on what, what noise alone did and the ids; what varies between rows is left to the columns."""
    spec = run.header.cells[0].spec
    free = set(varying([group[0].settings for group in groups_of(rows)]))
    sentences = (
        _model(spec, free),
        _workload(spec, free),
        _precision(run, spec, free),
        machine_sentence(facts_of(run)),
        _controls(rows),
        _placement(rows),
        _ids(run, rows),
    )
    return tuple(filter(None, sentences))


def methods_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were made, against which roofs, with which software."""
    sentences = (_numbers(run), _roofs(rows), software_sentence(facts_of(run)))
    return tuple(filter(None, sentences))


def figure_caption(run: Run, rows: Sequence[Row]) -> str:
    """What the figure shows, in one or two sentences."""
    open_ones = any(row.outcome is Outcome.NOISY for row in rows)
    noisy = " A value with ~ is NOISY: its interval stayed open." if open_ones else ""
    control = " The control is not drawn." if any(row.role == "control" for row in rows) else ""
    return (
        f"{run.header.title}: speed-up over {run.header.baseline}; whiskers: interval of the ratios formed inside "
        f"rounds; numbers on bars: tokens/s.{noisy}{control}"
    )


def _model(spec: RunSpec, free: set[str]) -> str:
    if "model" in free:
        return ""
    model = spec.model
    weights = f"checkpoint {model.path}" if model.path else f"synthetic weights, seed {model.seed}"
    if "model.layers" in free:
        return f"Model: {model.name} ({weights})."
    if not model.is_slice:
        return f"Model: {model.name}, all {model.full_layers} layers ({weights})."
    depth = f"{model.shape.layers} of {model.full_layers} layers"
    if model.shape.vocab != model.full_vocab:
        depth += f", vocabulary {model.shape.vocab:,} of {model.full_vocab:,}"
    return f"Model: {model.name}, slice of {depth} ({weights}); speeds are the slice's, nothing is extrapolated."


def _workload(spec: RunSpec, free: set[str]) -> str:
    work = spec.workload
    context = "prompt of" if work.phase == "prefill" else "context from"
    parts = {
        "phase": work.phase,
        "batch": f"batch {work.batch}",
        "prompt": f"{context} {work.prompt} tokens",
        "steps": f"{work.steps} step{'' if work.steps == 1 else 's'} a turn",
        "routing": "routing by the model" if work.routing == "model" else f"{work.routing} routing",
        "seed": f"seed {work.seed}",
    }
    return f"Workload: {', '.join(text for key, text in parts.items() if f'workload.{key}' not in free)}."


def _precision(run: Run, spec: RunSpec, free: set[str]) -> str:
    parts = [f"system {spec.system}"]
    if "precision" not in free:
        parts.append(f"precision {spec.precision}")
    if "engine.threads" not in free:
        cpus = facts_of(run).get("cpus")
        every = f"threads on all {len(cpus)} cores" if cpus else "threads on all cores"
        parts.append(every if spec.engine.threads is None else f"{spec.engine.threads} threads")
    return f"{', '.join(parts).capitalize()}."


def _numbers(run: Run) -> str:
    measure, base = run.header.measure, run.header.baseline
    return (
        f"Values are medians over rounds of each round's median step, in brackets the distribution-free interval of at "
        f"least {CONFIDENCE:.0%}. "
        f"Speed-ups over {base} and gains are formed inside rounds; faster and slower: the whole interval lies beyond "
        f"±{MARGIN:.0%} and beyond the control's; same: within ±{MARGIN:.0%}. "
        f"NOISY: the interval of the speed-up (for {base}, of its control's) did not come within ±{measure.goal:.1%}. "
        f"Error: the largest relative (Frobenius) error of the experts' outputs against the float32 reference on the "
        f"same inputs, at most {measure.tolerance:g} is allowed."
    )


def _controls(rows: Sequence[Row]) -> str:
    """What equal cells differ by: the one control, or the spread of all."""
    controls = [row for row in rows if row.role == "control"]
    found = [row.speedup for row in controls if row.speedup]
    if not controls:
        return "No control: nothing shows what noise alone does."
    opening = f"Control ({controls[0].baseline} against itself)"
    if not found:
        return f"{opening}: {controls[0].missing['speedup']}."
    moved = any(row.verdict in (Verdict.FASTER, Verdict.SLOWER) for row in controls)
    distrust = "; distrust differences of this size" if moved else ""
    if len(controls) == 1:
        return f"{opening}: {ratio(found[0])}×, {controls[0].verdict}{distrust}."
    low, high = min(interval.low for interval in found), max(interval.high for interval in found)
    measured = f"{len(found)} of {len(controls)} measured"
    return f"{opening}: {measured}, all intervals within [{low:.3f}, {high:.3f}]×{distrust}."


def _roofs(rows: Sequence[Row]) -> str:
    samples = _samples(rows)
    if not samples:
        return ""
    read = _spread([roof.read_bytes_per_s / 1e9 for roof in samples])
    peaks: dict[str, list[float]] = {}
    for roof in samples:
        if roof.peak_flops is not None:
            peaks.setdefault(roof.peak_isa, []).append(roof.peak_flops / 1e12)
    parts = [f"read {read} GB/s", *(f"{isa} peak {_spread(found)} TFLOPS" for isa, found in sorted(peaks.items()))]
    return f"Roofs sampled next to the turns, median (least to most): {', '.join(parts)}."


def _samples(rows: Sequence[Row]) -> list[RoofSample]:
    return [roof for row in rows for record in row.records for roof in record.roofs]


def _spread(values: Sequence[float]) -> str:
    return f"{number(median(values), 3)} ({number(min(values), 3)} to {number(max(values), 3)})"


def _placement(rows: Sequence[Row]) -> str:
    times = [roof.ping_pong_ns for roof in _samples(rows) if roof.ping_pong_ns is not None]
    if not times or max(times) <= _MOVED * min(times):
        return ""
    return (
        f"Core-to-core time varied between turns from {min(times):.0f} to {max(times):.0f} ns, as it does where a "
        "hypervisor moves the cores."
    )


def _ids(run: Run, rows: Sequence[Row]) -> str:
    records = [record for row in rows for record in row.records]
    codes = dict.fromkeys([run.header.code_id, *(record.code_id for record in records)])
    machines = dict.fromkeys([run.header.env_id, *(record.env_id for record in records)])
    base = next((row.spec_id for row in rows if row.is_baseline), None)
    spec = f", spec of {run.header.baseline} {base}" if base else ""
    return f"Ids: run {run.header.run}, code {' and '.join(codes)}, machine {' and '.join(machines)}{spec}."
