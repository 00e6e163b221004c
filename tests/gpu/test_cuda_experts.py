"""Experts that live with a CUDA device, against float32 arithmetic on cores."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch

from ktbench.engine.cuda import experts as module
from ktbench.engine.cuda import packed as packed_module
from ktbench.engine.cuda.experts import SlotExperts
from ktbench.engine.cuda.norm import DeviceNorm
from ktbench.engine.cuda.packed import PackedSlots
from ktbench.engine.cuda.stream import CurrentStream, SideStream, StepClock
from ktbench.engine.forms import Glu
from ktbench.engine.routing import Routing
from tests.engine.cuda import test_norm, test_packed
from tests.engine.cuda.test_experts import FORMS, E, Store, call, expected

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["as the device does", "gathered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "gathered":
        for one in (module, packed_module):
            monkeypatch.setattr(one, "groups_at_once", lambda _: False)


def there(routing: Routing) -> Routing:
    return Routing(ids=routing.ids.cuda(), gates=routing.gates.cuda())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_every_form_against_float32(form: str, tokens: int) -> None:
    store, placed = Store(FORMS[form]), [4, 1, 3]
    experts = SlotExperts(E, placed, store, torch.device("cuda"))
    hidden, routing = call(tokens)
    truth = expected(store, placed, hidden, routing)
    seen = experts(hidden.cuda(), there(routing)).cpu().float()
    assert (seen - truth).norm() <= 0.01 * truth.norm()


@pytest.mark.usefixtures("way")
def test_a_captured_call_sees_moves() -> None:
    store = Store(FORMS["gpt_oss"])
    experts = SlotExperts(E, [4, 1], store, torch.device("cuda"))
    hidden, routing = call(5)
    x, where = hidden.cuda(), there(routing)
    for _ in range(2):
        experts(x, where)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = experts(x, where)
    for placed in ([4, 1], [0, 1]):
        if placed == [0, 1]:
            experts.move(0, 4, store(0))
        graph.replay()
        truth = expected(store, placed, hidden, routing)
        assert (output.cpu().float() - truth).norm() <= 0.01 * truth.norm()


def packed_slots(host: test_packed.Packed, precision: str) -> PackedSlots:
    layout = test_packed.streamed(host, precision).layout
    return PackedSlots(host.memory, test_packed.PLACED, layout, Glu(), torch.device("cuda"))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("precision", test_packed.FORMATS)
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_packed_experts_against_float32(precision: str, tokens: int) -> None:
    host, (hidden, routing) = test_packed.packed(precision, True), test_packed.call(test_packed.H, tokens)
    experts = packed_slots(host, precision)
    truth = test_packed.expected(host, test_packed.PLACED, hidden, routing)
    assert test_packed.relative(experts(hidden.cuda(), there(routing)).cpu(), truth) < test_packed.TOLERANCE
    for i in test_packed.PLACED:
        for one, other in zip(experts.matrices(i).tensors, host.matrices(i).tensors, strict=True):
            assert torch.equal(one.cpu(), other.to(one.dtype))


@pytest.mark.parametrize("precision", test_packed.FORMATS)
def test_a_captured_call_sees_packed_bytes_that_have_arrived(precision: str) -> None:
    host, transfers = test_packed.packed(precision), SideStream()
    experts = packed_slots(host, precision)
    hidden, routing = test_packed.call(test_packed.H, 1)
    x, where = hidden.cuda(), there(routing)
    for _ in range(2):
        experts(x, where)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = experts(x, where)
    transfers.fork()
    transfers.copy(experts.memory_for(1, 3), host.memory[1].pin_memory())
    transfers.finish()
    assert transfers.done()
    graph.replay()
    truth = test_packed.expected(host, [1, 0, 4], hidden, routing)
    assert (output.cpu().float() - truth.float()).norm() <= test_packed.TOLERANCE * truth.float().norm()


@pytest.mark.parametrize("kind", [test_norm.Qwen3MoeRMSNorm, *test_norm.OFFSET])
@pytest.mark.parametrize("width", [128, 2048, 7168])
def test_norms_round_once(kind: type, width: int) -> None:
    original = test_norm.norm(kind, width)
    x = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(width)).bfloat16()
    exact = test_norm.truth(original, x)
    seen = DeviceNorm(original).cuda()(x.cuda()).cpu()
    assert ((seen.double() - exact).abs() <= 1.05 * test_norm.ROUNDING * exact.abs() + 1e-30).all()


def test_steps_by_the_clock_of_the_device() -> None:
    """They are within what the host sees of them."""
    clock, x = StepClock(CurrentStream()), torch.randn(2048, 2048, device="cuda")
    assert clock.mean_s() is None
    began = perf_counter()
    for _ in range(3):
        clock.step(lambda: [x @ x for _ in range(20)])  # type: ignore[arg-type,return-value]
    seconds = clock.mean_s()
    assert seconds is not None
    assert 0 < 3 * seconds <= 1.01 * (perf_counter() - began)
