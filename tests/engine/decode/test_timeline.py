"""Where time goes, module by module."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ktbench.engine.decode.timeline import ModuleWatch, Segment, Where, layer_of, merge_segments, timed, timeline


class Ticking(ModuleWatch):
    """Every look at the clock is a nanosecond later than the one before."""

    def __init__(self) -> None:
        super().__init__()
        ticks = count()
        self.clock = lambda: next(ticks)


class Failing(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise RuntimeError("in the middle")


def network(inside: nn.Module) -> nn.Module:
    attention = nn.Sequential(OrderedDict(q_norm=nn.Identity(), q_proj=inside))
    layer = nn.Sequential(OrderedDict(self_attn=attention, mlp=nn.Identity()))
    model = nn.Sequential(OrderedDict(layers=nn.Sequential(layer), norm=nn.Identity()))
    return nn.Sequential(OrderedDict(model=model, lm_head=nn.Identity()))


def test_segments_follow_the_modules_and_leave_no_gap() -> None:
    watch, watched = Ticking(), network(nn.Identity())
    with watch.on(watched) as segments:
        watched(torch.zeros(1))
    assert [segment.where for segment in merge_segments(segments)] == [
        Where("other"),
        Where("attention", 0),
        Where("norm", 0),
        Where("attention", 0),
        Where("other"),
        Where("mlp", 0),
        Where("other"),
        Where("norm"),
        Where("other"),
        Where("head"),
        Where("other"),
    ]
    assert all(one.end_ns == other.begin_ns for one, other in pairwise(segments))


def test_nothing_is_taken_down_outside() -> None:
    watch, watched = Ticking(), network(nn.Identity())
    with watch.on(watched) as segments:
        pass
    before = list(segments)
    watched(torch.zeros(1))
    watch.enter(Where("wait", 3))
    assert watch.here == Where("wait", 3)
    watch.leave()
    assert segments == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())


def test_an_error_in_a_module_does_not_follow_us_into_the_next_step() -> None:
    watch, watched = Ticking(), network(Failing())
    with pytest.raises(RuntimeError, match="in the middle"), watch.on(watched):
        watched(torch.zeros(1))
    assert watch.here == Where("other")
    whole = network(nn.Identity())
    with watch.on(whole) as segments:
        whole(torch.zeros(1))
    assert segments[0].where == segments[-1].where == Where("other")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.experts", 3),
        ("model.language_model.layers.12.self_attn", 12),
        ("layers.0", 0),
        ("model.norm", None),
        ("model.sublayers.3.mlp", None),
    ],
)
def test_layers_are_told_by_name(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


def test_neighbours_of_one_kind_become_one() -> None:
    a, b = Where("attention", 0), Where("attention", 1)
    segments = [Segment(a, 0, 2), Segment(a, 2, 3), Segment(b, 4, 5), Segment(a, 5, 6)]
    assert merge_segments(segments) == [Segment(a, 0, 3), Segment(b, 4, 5), Segment(a, 5, 6)]
    assert merge_segments([]) == []


@pytest.mark.parametrize(
    ("layers", "on_time", "deferred"),
    [
        ((3, 4), True, ()),
        ((3, 3, 4, 4, 5), True, (1, 3)),
        ((3, 4, 3, 4), True, ()),  # two passes
        ((3, 3, 4, 3, 3, 4), True, (1, 4)),
        ((4, 4), True, ()),  # the last layer defers nothing
        ((3, 4), False, (0,)),
    ],
)
def test_of_two_jobs_of_a_layer_in_a_pass_the_second_is_deferred(
    layers: tuple[int, ...], on_time: bool, deferred: tuple[int, ...]
) -> None:
    jobs = np.array([(layer, at, at + 1) for at, layer in enumerate(layers)])
    spans = timeline("t", [Segment(Where("graph"), 0, len(layers))], jobs, on_time=on_time).spans
    kinds = [span.kind for span in spans if span.resource == "host"]
    assert kinds == ["deferred" if at in deferred else "experts" for at in range(len(layers))]


def test_calls_are_made_in_order_and_timed() -> None:
    made: list[int] = []
    places = [Where("a"), Where("a"), Where("b")]
    segments = timed([(lambda number=number: made.append(number), place) for number, place in enumerate(places)])
    assert made == [0, 1, 2]
    assert [segment.where for segment in segments] == [Where("a"), Where("b")]
    assert all(segment.begin_ns <= segment.end_ns for segment in segments)
