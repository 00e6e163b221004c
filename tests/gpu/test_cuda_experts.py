"""Experts that live with a CUDA device, against float32 arithmetic on cores."""

from __future__ import annotations

import pytest
import torch

from ktbench.engine.cuda import experts as module
from ktbench.engine.cuda.experts import SlotExperts
from ktbench.engine.routing import Routing
from tests.engine.cuda.test_experts import FORMS, E, Store, call, expected

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["as the device does", "gathered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "gathered":
        monkeypatch.setattr(module, "groups_at_once", lambda _: False)


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
