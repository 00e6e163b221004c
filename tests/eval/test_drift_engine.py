"""Drift of the engine itself: what each feature costs on a small random model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ktbench.engine.generate import Generator, open_generator
from ktbench.engine.protocol import HostRole
from ktbench.eval.drift import DriftPlan, Phase, measure_drift
from ktbench.eval.evaluate import GradedAnswer
from ktbench.eval.tasks.harness import TextDocument
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.engine.engines import FUSED, cell, changed, needs_vector, plain, saved
from tests.engine.tiny import decode
from tests.eval.conftest import ByteTokenizer

pytestmark = needs_vector()
TEXT = "Mister Verloc, going out in the morning, left his shop nominally in charge of his brother-in-law."
DOCUMENTS = [TextDocument(name="text", text=TEXT), TextDocument(name="sum", text="12+34=", continuation="46\n")]
PLAN = DriftPlan(phase="decode", model="tiny", vocab=256, prompt=12, given=6)
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "fused": FUSED,
    "deferral": FUSED | {"deferral": 2},
    "skipping": FUSED | {"skipping": 2},
    "more skipping": FUSED | {"skipping": 3},
    "deferral in prefill": FUSED | {"deferral": 2, "defer_prefill": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    wide = changed("deepseek_v3", num_experts_per_tok=4, initializer_range=0.1)  # not all tokens equally likely
    return saved(wide, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cells(model: ModelSpec) -> dict[str, RunSpec]:
    return {name: cell(model, decode(), **engine) for name, engine in ARMS.items()}


@pytest.fixture(scope="module")
def generator(cells: Mapping[str, RunSpec]) -> Iterator[Generator]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = open_generator(list(cells.values()), HostRole(cores=1, cpus=()))
    yield engine
    engine.close()
    torch.set_num_threads(threads)


def measured(
    generator: Generator, cells: Mapping[str, RunSpec], phase: Phase, file: Path
) -> dict[str, list[GradedAnswer]]:
    found = {}
    for name, spec in cells.items():
        generator.use(spec)
        plan = replace(PLAN, phase=phase)
        drift = measure_drift(
            generator, ByteTokenizer(), DOCUMENTS, plan=plan, reference=file, is_reference=name == "base"
        )
        found[name] = list(drift)
    return found


def mean(answers: list[GradedAnswer], metric: str) -> float:
    chosen = [(one.value or 0.0, one.weight) for one in answers if one.metric == metric]
    return sum(value * weight for value, weight in chosen) / sum(weight for _, weight in chosen)


def test_decode_ranks_features_by_what_they_change(
    generator: Generator, cells: Mapping[str, RunSpec], tmp_path: Path
) -> None:
    found = measured(generator, cells, "decode", tmp_path / "kept")
    kl = {name: mean(answers, "kl_nats") for name, answers in found.items()}
    top1 = {name: mean(answers, "top1") for name, answers in found.items()}
    assert kl["base"] == 0.0 and top1["base"] == 1.0
    assert 0 < 10 * kl["fused"] < kl["deferral"] < kl["skipping"] < kl["more skipping"]
    assert top1["more skipping"] < top1["fused"] <= 1.0


def test_prefill_sees_deferral_only_where_it_acts_there(
    generator: Generator, cells: Mapping[str, RunSpec], tmp_path: Path
) -> None:
    found = measured(generator, cells, "prefill", tmp_path / "kept")
    assert found["fused"] == found["deferral"] == found["skipping"]
    assert mean(found["deferral in prefill"], "kl_nats") > 10 * mean(found["fused"], "kl_nats") > 0


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_likelihood_is_that_of_plain_transformers(
    phase: Phase, generator: Generator, cells: Mapping[str, RunSpec], model: ModelSpec, tmp_path: Path
) -> None:
    (last,) = [one for one in measured(generator, cells, phase, tmp_path / "kept")["base"][-3:] if "nll" in one.metric]
    tokens = torch.tensor([list(b"12+34=46\n")])
    with torch.inference_mode():
        log_q = plain(model)(input_ids=tokens[:, :-1]).logits[0].double().log_softmax(-1)
    expected = -log_q[range(5, 8), tokens[0, 6:]].mean()
    assert (last.question, last.weight) == ("sum", 3)
    assert last.value == pytest.approx(float(expected), rel=0.01)
