"""The picture and the trace of a timeline: what is drawn is what the spans say."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ktbench.report.exchange.chrome_trace import chrome_trace
from ktbench.report.figures.output import save
from ktbench.report.figures.timeline import shares, timeline_figure
from ktbench.spec.timeline import Span, Timeline
from tests.report.drawn import (
    caption,
    legend,
)
from tests.report.timelines import decode_step

STEPS = {
    "plain": decode_step(),
    "deferred": decode_step(deferred=True),
    "deep": decode_step(48, deferred=True, link=True),
    "short": decode_step(2, device_ms=0.02, host_ms=0.05),
    "one layer": decode_step(1),
}


def boxes(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def drawn_ms(figure: Figure, lane: int) -> float:
    """Milliseconds covered in a lane of all rows."""
    return sum(box.get_width() for axes in figure.axes for box in boxes(axes) if int(box.get_y()) == lane)


@pytest.mark.parametrize("name", STEPS)
def test_every_span_is_drawn_where_and_as_long_as_it_was(name: str) -> None:
    timeline = STEPS[name]
    figure = timeline_figure(timeline)
    for lane, resource in enumerate(timeline.resources):
        whole = sum(span.end_s - span.begin_s for span in timeline.spans if span.resource == resource)
        assert drawn_ms(figure, lane) == pytest.approx(1e3 * whole)
    first = min(box.get_x() for box in boxes(figure.axes[0]) if int(box.get_y()) == 0)
    assert first == pytest.approx(1e3 * min(span.begin_s for span in timeline.spans if span.resource == "host"))


def test_a_long_step_is_folded_so_that_its_spans_stay_wide_enough() -> None:
    deep = timeline_figure(STEPS["deep"])
    assert len(timeline_figure(STEPS["plain"]).axes) == 1
    ends = [axes.get_xlim() for axes in deep.axes]
    assert len(ends) > 1
    assert all(left[1] == pytest.approx(right[0]) for left, right in pairwise(ends))
    inches = [
        box.get_width() / (axes.get_xlim()[1] - axes.get_xlim()[0]) * axes.get_position().width * 7.0
        for axes in deep.axes
        for box in boxes(axes)
    ]
    assert np.median(inches) > 0.1


def test_kinds_differ_in_grey_or_hatch_and_stand_in_the_legend() -> None:
    figure = timeline_figure(STEPS["deferred"])
    assert legend(figure) == [
        "attention", "shared", "experts", "deferred", "other", "wait",
    ]  # fmt: skip
    looks = {
        (round(float(np.dot(to_rgb(box.get_facecolor()), (0.299, 0.587, 0.114))), 1), box.get_hatch())
        for box in boxes(figure.axes[0])
    }
    assert len(looks) == 6


def test_an_unknown_kind_looks_like_any_other() -> None:
    span = Span(resource="device", name="norm", kind="norm", begin_s=0.0, end_s=1e-3)
    figure = timeline_figure(Timeline(title="norm", spans=(span,), step_s=1e-3))
    assert legend(figure) == ["other"]


def test_shares_say_busy_waiting_and_both_with_the_provenance() -> None:
    """One layer: 0.2 ms embedding, 0.5 attention, 1.6 of experts of which 0.4 under the shared expert, 0.6 head."""
    opening, said = shares(STEPS["one layer"])
    assert opening == "Decode step of 1 layers: one step of 2.90 ms, measured."
    assert said == "Of the step: host busy 55%; device busy 59% and waiting 41%; host and device at once 14%."
    assert f"{opening} {said} Ids: none." in caption(timeline_figure(STEPS["one layer"], conditions=["Ids: none."]))


def test_the_headline_and_how_busy_roles_were_stand_above_all_else() -> None:
    figure = timeline_figure(STEPS["one layer"], "a model on a machine")
    first, second = sorted(figure.texts, key=lambda text: -text.get_position()[1])[:2]
    assert first.get_text() == "a model on a machine"
    assert re.findall(r"\d+(?=%)", second.get_text()) == ["55", "59", "14"]  # host, device, both
    lowest = second.get_window_extent().y0
    assert all(legend.get_window_extent().y1 <= lowest for legend in figure.legends)


def test_what_a_device_does_inside_a_graph_has_no_share() -> None:
    spans = [
        Span(resource="device", name="graph", kind="graph", begin_s=0.0, end_s=1.0),
        Span(resource="host", name="experts of layer 0", kind="experts", begin_s=0.2, end_s=0.7, layer=0),
    ]
    timeline = Timeline(title="t", spans=tuple(spans), step_s=1.0)
    _, said = shares(timeline)
    assert "host busy 50%" in said and "device busy" not in said and "at once" not in said


def test_a_simulated_timeline_says_so() -> None:
    timeline = Timeline(title="t", spans=STEPS["plain"].spans, step_s=1.0, provenance="simulated")
    assert "simulated" in next(shares(timeline))
    assert json.loads(chrome_trace(timeline))["otherData"]["provenance"] == "simulated"


def test_a_timeline_without_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="timeline empty: has no spans"):
        timeline_figure(Timeline(title="empty", spans=(), step_s=1.0))


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = (
        {path.name: path.read_bytes() for path in save(timeline_figure(STEPS["plain"]), tmp_path, "timeline")}
        for _ in range(2)
    )
    assert set(first) == {"timeline.pdf", "timeline.svg", "timeline.png"}
    assert first == again


def events(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(chrome_trace(timeline))["traceEvents"] if event["ph"] == phase]


def test_the_trace_has_a_complete_event_for_each_span_in_microseconds() -> None:
    timeline = STEPS["deep"]
    threads = {e["tid"]: e["args"]["name"] for e in events(timeline, "M") if e["name"] == "thread_name"}
    assert sorted(threads.values()) == ["device", "host", "link"]
    found = events(timeline, "X")
    assert len(found) == len(timeline.spans)
    assert {event["pid"] for event in found} == {1}
    for event, span in zip(found, timeline.spans, strict=True):
        assert (event["ts"], event["dur"]) == pytest.approx(
            (span.begin_s * 1e6, (span.end_s - span.begin_s) * 1e6), abs=1e-3
        )
        assert (threads[event["tid"]], event["name"], event["cat"]) == (span.resource, span.name, span.kind)
        assert event["args"].get("layer") == span.layer
