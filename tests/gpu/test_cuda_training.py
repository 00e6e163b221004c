"""A training step whose experts stay on the cores, beside a network on CUDA, learns what it learns on cores alone."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.run.check import check, check_the_check
from ktbench.spec.record import Outcome
from tests.engine.training.test_system import ARMS, spec_with, trained

pytest.importorskip("peft", reason="peft is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("options", ARMS)
def test_losses_are_those_of_cores(options: dict[str, Any]) -> None:
    ours, truth = (trained(spec_with(**options, device=device)).parts().losses for device in ("cuda", "cpu"))
    assert ours == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("options", ARMS)
def test_gradients_pass_the_check_which_finds_mutants(options: dict[str, Any]) -> None:
    spec = spec_with(**options, device="cuda")
    system = trained(spec)
    seen = system.observe()
    assert check(seen, system.reference, spec.tolerance).outcome is Outcome.OK
    assert check_the_check(seen, system.reference, spec.tolerance) == ""


@pytest.mark.parametrize("options", ARMS[:2])
@pytest.mark.parametrize("adapters", ["attention", "experts"])
def test_a_repetition_starts_anew(options: dict[str, Any], adapters: str) -> None:
    system = trained(spec_with({"adapters": adapters}, **options, device="cuda"))
    first = system.parts().losses
    system.start()
    for _ in first:
        system.step()
    assert system.parts().losses == pytest.approx(first, rel=1e-3)
