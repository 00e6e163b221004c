"""The training workload: steps that learn, parts that are timed, and gradients that are held against float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ktbench.engine.protocol import Diverged, HostRole
from ktbench.engine.training.products import PackedProducts
from ktbench.run.check import check, check_the_check
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from tests.tiny import tiny_spec

pytest.importorskip("peft", reason="peft is not installed")
# PEFT uses what Transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("default")

_WORK = {"prompt": 12, "steps": 3, "batch": 2, "adapters": "both", "lora_rank": 4, "recompute": True}
ARMS: list[dict[str, Any]] = [
    {},
    {"avx512": True},
    {"avx512": True, "dynamic": True, "precision": "int8"},
    {"avx512": True, "precision": "int4_g32"},
]


def spec_with(work: dict[str, Any] | None = None, **options: Any) -> RunSpec:
    return tiny_spec(phase="train", workload=_WORK | (work or {}), **options)


def trained(spec: RunSpec) -> Any:
    """The system after all steps of the workload."""
    from ktbench.engine.training.load import load_training

    if spec.engine.avx512:
        from ktbench import _kernels

        if why := _kernels.grants()["avx512"]:
            pytest.skip(why)
    system = load_training(spec, HostRole(cores=1))
    system.configure(spec)
    for _ in range(spec.workload.steps):
        system.step()
    return system


@pytest.mark.parametrize("options", ARMS)
def test_gradients_pass_the_check_which_finds_mutants(options: dict[str, Any]) -> None:
    spec = spec_with(**options)
    system = trained(spec)
    seen = system.observe()
    assert check(seen, system.reference, spec.tolerance).outcome is Outcome.OK
    assert check_the_check(seen, system.reference, spec.tolerance) == ""


def test_a_broken_gradient_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_with(avx512=True)
    system = trained(spec)
    right = PackedProducts.transposed
    monkeypatch.setattr(PackedProducts, "transposed", lambda *arguments: 1.1 * right(*arguments))
    assert check(system.observe(), system.reference, spec.tolerance).outcome is Outcome.WRONG


@pytest.mark.parametrize("adapters", ["attention", "experts", "both"])
def test_losses_are_those_of_plain_transformers_whatever_is_adapted(adapters: str) -> None:
    plain, ours = (trained(spec_with({"adapters": adapters}, **arm)).parts() for arm in ARMS[:2])
    assert ours.losses == pytest.approx(plain.losses, rel=0.01)


@pytest.mark.parametrize("options", ARMS[:2])
def test_recomputation_changes_no_loss(options: dict[str, Any]) -> None:
    losses = [trained(spec_with({"recompute": again}, **options)).parts().losses for again in (True, False)]
    assert losses[0] == pytest.approx(losses[1], rel=0.005)


def test_a_repetition_starts_anew() -> None:
    system = trained(spec_with())
    first = system.parts().losses
    system.start()
    for _ in first:
        system.step()
    assert system.parts().losses == pytest.approx(first, rel=1e-3)


def test_a_step_needs_about_twice_the_operations_of_its_forward_pass() -> None:
    system = trained(spec_with())
    shape, tokens = system.model.shape, 2 * 12
    products = shape.layers * shape.top_k * shape.expert_params + shape.vocab * shape.hidden
    assert system.work().tokens == tokens
    assert 2 * 2 * tokens * products * 0.7 < system.work().flops < 2 * 2 * tokens * products * 2


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    system = trained(spec_with())
    system.start()
    system.step()
    with torch.no_grad():
        system._state.factors[-1].fill_(float("nan"))
    with pytest.raises(Diverged, match="step 2 is nan"):
        system.step()
