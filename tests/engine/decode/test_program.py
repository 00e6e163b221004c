"""A recorded step does on new inputs what the code would have done; native calls are made once, recorded or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ktbench.engine.decode.lazy import LazyTensor
from ktbench.engine.decode.program import CallRecorder, NotRecordable, StepRecorder
from ktbench.engine.decode.timeline import ModuleWatch, Where

pytestmark = pytest.mark.usefixtures("inference")

Code = Callable[[Tensor], Tensor]


def _record(code: Code, inputs: Tensor) -> tuple[StepRecorder, Tensor]:
    recorder = StepRecorder(ModuleWatch())
    with recorder:
        result = code(inputs)
    return recorder, result


CODES: dict[str, Code] = {
    "arithmetic": lambda x: (x * 2 + 1) / 3 - x.neg(),
    "norm": lambda x: x.to(torch.bfloat16) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6).to(torch.bfloat16),
    "rotary": lambda x: torch.cat([-x[..., 4:], x[..., :4]], dim=-1) * x.cos() + x.sin(),
    "router": lambda x: torch.topk(torch.softmax(x, dim=-1, dtype=torch.float32), 3, dim=-1)[0],
    "selected": lambda x: x.gather(1, x.argsort(dim=-1, descending=True, stable=True)[:, :2]),
    "linear": lambda x: torch.nn.functional.linear(x, torch.arange(24.0).view(3, 8), torch.ones(3)),
    "in place": lambda x: torch.zeros_like(x).add_(x).mul_(3).index_add_(0, torch.tensor([1]), x[:1]),
    "views": lambda x: x.view(2, 2, 8).transpose(0, 1).reshape(4, 8).contiguous().unsqueeze(1)[:, 0] * 1,
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x.view(1, 2, 2, 8), x.view(1, 2, 2, 8), x.view(1, 2, 2, 8), attn_mask=torch.ones(2, 2, dtype=torch.bool)
    ),
    "masked": lambda x: torch.where(x > 0, x, torch.zeros_like(x)).clamp(max=0.5),
    "several results": lambda x: torch.cat(torch.split(x, 2)[::-1]) + torch.stack(x.unbind(0)),
}


@pytest.mark.parametrize("name", CODES)
def test_replay_is_the_code_on_new_inputs(name: str) -> None:
    code, x = CODES[name], torch.randn(4, 8)
    program, result = _record(code, x)
    for _ in range(2):
        x.copy_(torch.randn(4, 8))
        program.replay()
        assert torch.equal(result, code(x))


@given(
    st.lists(
        st.sampled_from([name for name in CODES if name in ("arithmetic", "rotary", "in place", "masked", "views")]),
        max_size=5,
    )
)
def test_any_sequence_replays(names: list[str]) -> None:
    def code(x: Tensor) -> Tensor:
        for name in names:
            x = CODES[name](x)
        return x + 0

    with torch.inference_mode():
        x = torch.randn(4, 8)
        program, result = _record(code, x)
        x.copy_(torch.randn(4, 8))
        program.replay()
        assert torch.equal(result, code(x))


def test_views_and_memory_alone_are_no_calls() -> None:
    program, _ = _record(lambda x: torch.empty_like(x).view(8, 4).T.detach(), torch.randn(4, 8))
    assert len(program._calls) == 0


@pytest.mark.parametrize("code", [lambda x: x * x.sum().item(), lambda x: x[x[:, 0] > 0], torch.nonzero])
def test_what_python_decides_by_is_refused(code: Code) -> None:
    with pytest.raises(NotRecordable, match="depends on"):
        _record(code, torch.randn(4, 8))


def test_pending_tensors_are_fetched_inside_the_recording() -> None:
    x = torch.randn(4, 8)
    program, result = _record(
        lambda x: LazyTensor(lambda: x * 2, x.shape, x.dtype, x.device).view(8, 4) + x.view(8, 4), x
    )
    x.copy_(torch.randn(4, 8))
    program.replay()
    assert torch.equal(result, (x * 3).view(8, 4))


def test_timed_replay_says_where_time_went() -> None:
    watch, x = ModuleWatch(), torch.randn(64, 64)
    recorder = StepRecorder(watch)
    with recorder:
        watch.enter(Where("attention", 0))
        y = x @ x + 1
        watch.leave()
        watch.enter(Where("head"))
        _ = y.sum()
        watch.leave()
    segments = recorder.replay_timed()
    assert [segment.where for segment in segments] == [Where("attention", 0), Where("head")]
    assert all(segment.begin_ns <= segment.end_ns for segment in segments)
    assert segments[0].end_ns <= segments[1].begin_ns


class Notebook:
    """Takes down calls and where they were made."""

    def __init__(self, call_recorder: CallRecorder) -> None:
        self.recorder = call_recorder
        self.notes: list[tuple[Callable[[], object], tuple[object, ...], Where]] = []

    def note(self, call: Callable[[], object], *memory: object) -> None:
        self.notes.append((call, memory, self.recorder.watch.here))


def test_a_call_is_made_once_whether_it_is_recorded_or_not() -> None:
    call_recorder, made = CallRecorder(), []
    call_recorder.do(lambda: made.append("alone"))
    book = call_recorder.sink = Notebook(call_recorder)
    call_recorder.do(lambda: made.append("recorded"), "memory")
    assert made == ["alone", "recorded"]
    [(call, memory, where)] = book.notes
    assert (memory, where) == (("memory",), Where("other"))
    call()
    assert made == ["alone", "recorded", "recorded"]


def test_waiting_is_timed_and_recorded_beside_work() -> None:
    call_recorder, waits = CallRecorder(), []
    book = call_recorder.sink = Notebook(call_recorder)
    call_recorder.do(lambda: None)
    assert call_recorder.waited_ns == 0
    call_recorder.wait(lambda: waits.append(1), 4)
    once = call_recorder.waited_ns
    assert once > 0
    call, memory, where = book.notes[-1]
    assert (memory, where) == ((), Where("wait", 4))
    assert call_recorder.watch.here == Where("other")
    call()
    assert waits == [1, 1]
    assert call_recorder.waited_ns > once


def test_a_call_that_fails_is_not_taken_down() -> None:
    call_recorder = CallRecorder()
    book = call_recorder.sink = Notebook(call_recorder)
    with pytest.raises(ZeroDivisionError):
        call_recorder.do(lambda: 1 / 0)
    assert book.notes == []


@torch.inference_mode()
def test_a_recorder_replays_what_it_recorded_in_its_place() -> None:
    call_recorder, x, out = CallRecorder(), torch.ones(3), torch.zeros(3)
    recorder = call_recorder.sink = StepRecorder(call_recorder.watch)
    with recorder:
        doubled = x * 2
        call_recorder.do(lambda: out.numpy().__setitem__(slice(None), doubled.numpy()), doubled, out)
        result = out + 1
    x.fill_(5)
    recorder.replay()
    assert result.tolist() == [11, 11, 11]
