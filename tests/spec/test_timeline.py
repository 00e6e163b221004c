"""Shares of a timeline against counting small ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.timeline import WAIT, Resource, Span, Timeline

TICKS = 40


def span(resource: Resource, kind: str, begin: int, end: int) -> Span:
    return Span(resource=resource, name=kind, kind=kind, begin_s=begin, end_s=end)


SPANS = st.builds(
    lambda resource, kind, ends: span(resource, kind, *sorted(ends)),
    st.sampled_from(["host", "device"]),
    st.sampled_from(["experts", "attention", WAIT]),
    st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)),
)


@given(st.lists(SPANS, max_size=12))
def test_shares_are_unions_of_spans(spans: list[Span]) -> None:
    timeline = Timeline(title="", spans=tuple(spans), step_s=TICKS)

    def ticks(resource: Resource, *, waiting: bool) -> set[int]:
        mine = [s for s in spans if s.resource == resource and (s.kind == WAIT) == waiting]
        return {tick for s in mine for tick in range(int(s.begin_s), int(s.end_s))}

    host, device = (ticks(resource, waiting=False) for resource in ("host", "device"))
    assert (timeline.busy_s("host"), timeline.busy_s("device")) == (len(host), len(device))
    assert timeline.waiting_s("device") == len(ticks("device", waiting=True))
    assert timeline.overlap_s("host", "device") == len(host & device)


def test_resources_are_those_with_spans_in_one_order() -> None:
    timeline = Timeline(title="", spans=(span("link", "other", 0, 1), span("host", "experts", 0, 1)), step_s=1)
    assert timeline.resources == ("host", "link")


def test_a_span_does_not_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match=r"span experts: ends at 1 s, before it begins at 2 s"):
        span("host", "experts", 2, 1)
