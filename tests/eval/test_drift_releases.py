"""The nano model in the layouts of releases: its predictions move about as far as in the format that they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole
from ktbench.eval.drift import DriftPlan, measure_drift
from ktbench.eval.texts import nano_answers
from ktbench.run.request import read_request
from ktbench.spec.record import KL
from tests.drawing import few_of
from tests.engine.engines import VECTOR, needs_vector
from tests.engine.stored.written import CONFIG, RELEASES, WEIGHTS, describe

pytestmark = needs_vector()
NANO = Path(__file__).parents[2] / "evals" / "nano"
FUSED = f"engine.{VECTOR.name}=true"
PLAN = DriftPlan(phase="prefill", model="nano", vocab=272, limit=24)
_EXPERTS = re.compile(r"model\.layers\.\d+\.mlp\.experts\.\d+\..*\.weight")


def written(name: str, folder: Path) -> Path:
    """The nano model with its routed experts as a release has them; rows of the smallest are one group of 32."""
    release = RELEASES[name]
    stored = {}
    for key, weight in load_file(NANO / WEIGHTS).items():
        if _EXPERTS.fullmatch(key):
            tensors, _ = release.write(weight.float())
            owner = key.removesuffix("weight")
            stored |= {owner + last: tensor.contiguous() for last, tensor in tensors.items()}
        else:
            stored[key] = weight
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    describe(folder, json.loads((NANO / CONFIG).read_text()), release)
    return folder


def divergence(words: list[str], reference: Path) -> float:
    """Mean KL per token from the unmodified model, in nats; where there is no reference yet, this becomes it."""
    (part,) = read_request([*words, "engine.threads=1"]).parts
    generator = open_generator([part.spec], HostRole(cores=1, cpus=()))
    try:
        generator.use(part.spec)
        tokenizer, is_first = AutoTokenizer.from_pretrained(NANO), not reference.exists()
        texts = nano_answers().documents
        found = [*measure_drift(generator, tokenizer, texts, plan=PLAN, reference=reference, is_reference=is_first)]
    finally:
        generator.close()
    chosen = [(one.value or 0.0, one.weight) for one in found if one.metric == KL]
    return sum(value * weight for value, weight in chosen) / sum(weight for _, weight in chosen)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions of the unmodified model in bf16."""
    file = tmp_path_factory.mktemp("drift") / "kept"
    assert divergence(["model=nano", "precision=bf16"], file) == 0.0
    return file


@pytest.fixture(scope="module")
def rounded(reference: Path) -> Callable[[str], float]:
    """The divergence of a precision that the plain checkpoint is rounded to."""
    return cache(lambda precision: divergence(["model=nano", f"precision={precision}", FUSED], reference))


NAMES = ("fp8", "fp8 by rows", "int4", "nvfp4", "nvfp4 of compressed-tensors")


@pytest.mark.parametrize("name", few_of(NAMES, {"fp8 by rows", "nvfp4"}))
def test_a_release_drifts_as_its_format_does(
    name: str, rounded: Callable[[str], float], reference: Path, tmp_path: Path
) -> None:
    """Makers and `precision=` round alike but for details."""
    known = rounded(RELEASES[name].format)
    seen = divergence([f"model.path={written(name, tmp_path)}", FUSED], reference)
    assert known / 3 < seen < 3 * known
