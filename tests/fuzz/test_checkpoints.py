"""Whole and damaged checkpoints, loaded: the numbers are those of another reader, or a line says why not.

The short form of `nox -s fuzz -- --targets safetensors,gguf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ktbench.engine.experts import OriginalExperts
from tests.drawing import few_of
from tests.engine.families.plain import build
from tests.engine.tiny import tiny_model
from tests.fuzz.forks import Server, fault_of, serving
from tests.fuzz.numbers import FolderTruth, require_experts, require_network
from tests.fuzz.targets import TARGETS
from tests.loaded import Loader

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
WHOLE: dict[str, Any] = {
    "safetensors": {"bytes": [], "header": [], "index": [], "config": []},
    "gguf": {"bytes": [], "fields": []},
}
KINDS = {
    "safetensors": ("plain", "latent", "biases", "sharded", "fp8", "int4", "gptq", "gptq with zeros", "awq", "nvfp4"),
    "gguf": ("bf16", "q8_0", "q4_0", "mxfp4"),
}

EVERY = [(precision, target, of) for precision in ("native", "int8") for target, kinds in KINDS.items() for of in kinds]
FEW = [one for one in EVERY if one[0] == "native" or one[2] in ("fp8", "q4_0")]


@pytest.fixture(scope="module")
def server(loader: Loader) -> Iterator[Server]:
    with loader.stands_in(), serving(list(KINDS)) as running:
        yield running


@pytest.mark.parametrize("case", few_of(EVERY, FEW), ids=" ".join)
def test_a_whole_checkpoint_has_the_numbers_of_another_reader(case: tuple[str, str, str], server: Server) -> None:
    precision, target, of = case
    result = server.attempt(target, WHOLE[target] | {"of": of, "precision": precision})
    assert (result.code, fault_of(result)) == (0, None), result.output


def test_numbers_in_another_place_are_noticed(tmp_path: Path) -> None:
    network = build(tiny_model()).requires_grad_(False)
    network.save_pretrained(tmp_path)
    truth, name = FolderTruth(tmp_path, "plain"), "model.layers.0.mlp.experts"
    module = network.get_submodule(name)
    require_network(truth, network)
    require_experts(truth, name, OriginalExperts(module).matrices, 8)
    for held in (network.get_parameter("model.layers.1.self_attn.k_proj.weight"), module.down_proj[3]):
        held[:2] = held[:2].flip(0)
    with pytest.raises(AssertionError, match="k_proj"):
        require_network(truth, network)
    with pytest.raises(AssertionError, match="expert 3"):
        require_experts(truth, name, OriginalExperts(module).matrices, 8)


@pytest.mark.parametrize("target", KINDS)
def test_a_damaged_checkpoint_is_refused_in_a_line_or_loaded_right(target: str, server: Server) -> None:
    codes = set()

    @seed(21)
    @settings(
        max_examples=20,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(TARGETS[target].inputs())
    def attempt(data: Any) -> None:
        result = server.attempt(target, data)
        fault = fault_of(result)
        assert fault is None, f"{fault.kind}\n{fault.text}"
        codes.add(result.code)

    attempt()
    assert codes >= {0, 2}
