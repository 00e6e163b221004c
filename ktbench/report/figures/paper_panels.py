"""What figures of published numbers show: lines in panels, the names that distinguish them, and room for the panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from typing import Any, Literal

from ktbench.report.figures.sheet import COLUMN_IN, PAGE_IN, RIGHT_IN, Mark, PanelGrid, balanced
from ktbench.report.figures.text_metrics import INK
from ktbench.report.text import counted
from ktbench.results.paper import PaperLine
from ktbench.results.settings import calibration_title, described_title, group_by, model_title, varying
from ktbench.spec.published import NOT_OURS, Metric
from ktbench.spec.sweep import arm_peer

_ABREAST = 3
PANEL_IN = 1.5

FITTED = "simulated, used to fit"  # how bars call simulated values of numbers that constants were fitted on
# Of each provenance, in the order of a table: published is hollow, what is ours is filled.
BAR_LOOKS: dict[str, dict[str, Any]] = {
    "published": {"facecolor": "#ffffff", "hatch": "//////"},
    "simulated": {"facecolor": "#4a76a3"},
    FITTED: {"facecolor": "#a9bfd6"},
    "measured here": {"facecolor": "#c0d5e8", "hatch": "|||||"},
}
EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}


def panel_layout(count: int, *, narrow: bool, below_in: float = 0.0) -> PanelGrid:
    """Panels on a sheet as wide as a page, or as a column where `narrow`, with room for the names below each."""
    return PanelGrid(
        count=count,
        columns=balanced(count, _ABREAST),
        tall_in=PANEL_IN,
        above_in=0.17,
        below_in=below_in + 0.08,
        width_in=COLUMN_IN if narrow else PAGE_IN,
        right_in=2 * RIGHT_IN,
    )


Form = Literal["curves", "bars", "scores", "heat", "list"]

RATIO = "engine.placement.ratio"
SCORED = ("published, all experts on time", "published, with Expert Deferral")
_FEWEST = 3  # places on an axis that make a curve


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperPanel:
    """Lines side by side, in the unit `metric`; `title` is what distinguishes their panel from the others."""

    title: str
    metric: Metric
    lines: tuple[PaperLine, ...]


def form_of(lines: Sequence[PaperLine]) -> Form:
    """How lines are drawn: over tokens or a share of experts as curves, else as bars; accuracy in forms of its own."""
    if any(line.phase != "accuracy" for line in lines):
        return "curves" if x_of(lines) else "bars"
    if any(line.metric == "relative %" for line in lines):
        return "heat"
    return "scores" if any("deferral" in line.arm for line in lines) else "list"


def x_of(lines: Sequence[PaperLine]) -> Callable[[PaperLine], float] | None:
    """Where lines stand on the axis of curves; a line without a place is at infinity. None where nothing makes curves.

    What lives with the device as a share is 0 where nothing does.
    """
    if len({line.tokens for line in lines} - {None}) >= _FEWEST:
        return lambda line: inf if line.tokens is None else line.tokens
    if len({conditions(line).get(RATIO) for line in lines}) >= _FEWEST:
        return lambda line: float(conditions(line).get(RATIO, 0))
    return None


def conditions(line: PaperLine) -> dict[str, str]:
    """The settings that a number was taken at, by dotted key."""
    words = (word.partition("=") for word in line.conditions.split())
    return {key: value for key, _, value in words}


def panels_of(lines: Sequence[PaperLine]) -> tuple[PaperPanel, ...]:
    """A panel for each model, machine and unit, in order of appearance, those of one machine together.

    In each base comes first, other systems follow, as in the paper.
    """
    machines = list(dict.fromkeys(line.machine for line in lines))
    ordered = sorted(lines, key=lambda line: machines.index(line.machine))
    found = group_by((_panel(line), line) for line in ordered)
    facts = [_facts(group) for group in found.values()]
    keys = _distinguishing(facts)
    titles = [", ".join(filter(None, (one[key] for key in keys))) for one in facts]
    if len({*titles}) == 1 < len(titles):
        titles = [_measure(group) for group in found.values()]
    return tuple(
        PaperPanel(
            title=title,
            metric=group[0].metric,
            lines=tuple(sorted(group, key=_rank)),
        )
        for title, group in zip(titles, found.values(), strict=True)
    )


def _measure(group: Sequence[PaperLine]) -> str:
    """What numbers of one unit are about: `host busy`; of a bare share the words of the number."""
    return group[0].metric.lstrip("% ") or group[0].what.rpartition(": ")[2]


def unit_of(metric: Metric) -> str:
    """The unit on an axis: `%` of any share."""
    return "%" if metric.startswith("%") else metric


def _facts(group: Sequence[PaperLine]) -> Mapping[str, str]:
    """The precision is ours, where there is one: other systems have formats of their own."""
    ours = next(filter(_is_ours, group), group[0])
    return {
        "model": model_title(ours.model),
        "precision": "" if _has_precisions(group) else ours.precision,
        "machine": described_title(ours.machine),
        "metric": ours.metric,
    }


def _panel(line: PaperLine) -> tuple[str, str, str]:
    return line.model, line.machine, line.metric


def _has_precisions(group: Sequence[PaperLine]) -> bool:
    """Whether numbers about us were taken at several."""
    return len({line.precision for line in group if line.id and _is_ours(line)}) > 1


def _distinguishing(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """The model, and as much more as distinguishes all panels; their axes name the unit."""
    every = ["model", "precision", "machine"]
    counts = [len({(*(one[key] for key in every[:n]), one["metric"]) for one in facts}) for n in (1, 2, 3)]
    return every[: counts.index(counts[-1]) + 1]


def _rank(line: PaperLine) -> int:
    if line.arm == "base":
        return 0
    return 2 if _is_ours(line) else 1


def _is_ours(line: PaperLine) -> bool:
    return line.arm not in NOT_OURS and not arm_peer(line.arm)


def namer(lines: Sequence[PaperLine], skip: Sequence[str] = ()) -> Callable[[PaperLine], str]:
    """What distinguishes lines beside their panel: the arm unless there is only one, and the settings that vary.

    Settings in `skip` are named elsewhere. A cell without a published number has no settings of its own.
    """
    settings = [conditions(line) for line in lines if line.id]
    keys = [key for key in varying(settings) if key not in skip]
    arms = len({line.arm for line in lines}) > 1 or not keys

    def words(line: PaperLine) -> Iterator[str]:
        if arms:
            yield line.arm
        values = _UNSET | conditions(line)
        yield from (_setting(key, values[key]) for key in keys if key in values)

    return lambda line: ", ".join(dict.fromkeys(words(line))) or line.arm


_UNSET = {"machine.gpus": "1"}  # settings that are something where others name them


def _setting(key: str, value: str) -> str:
    """A setting in words: `without AMX`, `2 GPUs`, `KTransformers 0.2 to 0.2.4`, `policy uniform`."""
    match key, value:
        case (("machine.amx_tflops" | "machine.amx_int8_tops"), "null"):
            return "without AMX"
        case "machine.gpus", count:
            return counted(int(count), "GPU")
        case "machine.domains", count:
            return counted(int(count), "NUMA domain")
        case "machine.gpu_tflops", peak:
            return f"GPU of {peak} TFLOPS"
        case "machine.calibration", name:
            return calibration_title(name)
    return f"{key.rpartition('.')[2].replace('_', ' ')} {value}"


def line_mark(line: PaperLine) -> Mark:
    """The mark of a line."""
    return Mark(key=(line.id, line.cell))


def values_of(line: PaperLine) -> dict[str, float]:
    """What there is of a line, by provenance."""
    every = {"published": line.published, "simulated": line.simulated, "measured here": line.measured}
    return {name: value for name, value in every.items() if value is not None}


def tasks_named(lines: Sequence[PaperLine]) -> list[str]:
    """Tasks in order of appearance, without the words that all begin and end with."""
    tasks = [task.split() for task in dict.fromkeys(line.what for line in lines)]
    head, tail = _alike(tasks), _alike([task[::-1] for task in tasks])
    return [" ".join(task[head : len(task) - tail]).strip(",") for task in tasks]


def _alike(texts: Sequence[Sequence[str]]) -> int:
    """With how many words all begin."""
    return sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, zip(*texts, strict=False)))


def bar_namer(lines: Sequence[PaperLine]) -> Callable[[PaperLine], str]:
    """Arms with settings, with the batch and the phase where those vary, and the precision where it does in a panel.

    Other systems are named with their formats where those are not ours.
    """
    name = namer(lines)
    batches, phases = len({line.batch for line in lines}) > 1, len({line.phase for line in lines}) > 1
    panels = group_by((_panel(line), line) for line in lines)
    mixed = {panel for panel, group in panels.items() if _has_precisions(group)}
    ours = {panel: {line.precision for line in group if _is_ours(line)} for panel, group in panels.items()}

    def named(line: PaperLine) -> str:
        phase = [line.phase] if phases and line.phase != "decode" else []
        other = not _is_ours(line) and line.precision not in ours[_panel(line)]
        precision = [line.precision] if other or _panel(line) in mixed else []
        return ", ".join([name(line), *phase, *precision, *([f"batch {line.batch}"] if batches else [])])

    return named


def by_benchmark(panel: PaperPanel) -> dict[str, dict[str, PaperLine]]:
    """Scores by benchmark and by which of SCORED they are."""
    found: dict[str, dict[str, PaperLine]] = {}
    on_time, deferred = SCORED
    for line in panel.lines:
        benchmark, which = line.what.partition(" ")[0], deferred if "deferral" in line.arm else on_time
        found.setdefault(benchmark, {})[which] = line
    return found


MOST_CURVES = 4  # that one panel has room for
_NAMES = {"prefill": "tokens of the prompt", "decode": "tokens of context", "layer": "tokens per expert"}


def x_name(panel: PaperPanel, x: Callable[[PaperLine], float]) -> str:
    """What the axis of curves counts."""
    first = panel.lines[0]
    return _NAMES[first.phase] if x(first) == first.tokens else "share of the experts at the device"


def split_panels(
    panels: Sequence[PaperPanel], name: Callable[[PaperLine], str], x: Callable[[PaperLine], float]
) -> Sequence[PaperPanel]:
    """One panel with more curves than it has room for as a panel for each; what is no curve stands in all of them."""
    if len(panels) > 1:
        return panels
    lines = panels[0].lines
    places = group_by((name(line), x(line)) for line in lines)
    curves = [label for label, found in places.items() if len({*found}) > 1]
    if len(curves) <= MOST_CURVES:
        return panels
    return [
        replace(panels[0], title=label, lines=tuple(one for one in lines if name(one) not in {*curves} - {label}))
        for label in curves
    ]


def left_out(lines: Sequence[PaperLine], drawn: Sequence[PaperLine], why: str) -> list[str]:
    """How many of `lines` have values but are not among those `drawn`, which `why` describes."""
    count = sum(line not in drawn and bool(values_of(line)) for line in lines)
    return [f"Not drawn: {count} number{'' if count == 1 else 's'} {why}."] if count else []
