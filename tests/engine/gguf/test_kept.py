"""The GGUF file that a peer runs for a cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.engine.gguf import export
from ktbench.engine.gguf.export import MISSING, kept_file, no_file, weights_digest
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import ModelSpec
from tests.tiny import tiny_spec

SPEC = tiny_spec(system="llama.cpp", precision="int8", device_precision="bf16", peer=PeerSpec(exports="kept"))


def test_its_name_tells_model_types_and_numbers() -> None:
    file = kept_file(SPEC)
    assert (file.experts, file.dense) == ("Q8_0", "BF16")
    assert file.weights == weights_digest(SPEC.model, "Q8_0", "BF16")
    assert file.path == Path("kept") / f"tiny-2-layers-Q8_0-BF16-{file.weights[:12]}.gguf"


def test_precisions_of_one_type_share_a_file_and_other_numbers_have_another() -> None:
    same = replace(SPEC, precision="q8_0")
    seeded = replace(SPEC, model=replace(SPEC.model, seed=1))
    assert kept_file(same) == kept_file(SPEC)
    assert kept_file(seeded).path != kept_file(SPEC).path


def test_a_model_that_is_a_file_is_run_as_it_is() -> None:
    model = ModelSpec(name="m", config=SPEC.model.config, full_layers=2, full_vocab=256, path="there/m.gguf")
    file = kept_file(replace(SPEC, model=model))
    assert (file.path, file.weights) == (Path("there/m.gguf"), None)
    assert no_file(replace(SPEC, model=model)) == ""


def test_what_cannot_be_written_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SPEC.model.config | {"model_type": "minimax_m2"}
    assert "minimax_m2" in no_file(replace(SPEC, model=replace(SPEC.model, config=config)))
    assert no_file(tiny_spec(system="transformers")) == ""
    monkeypatch.setattr(export, "has_gguf", lambda: False)
    assert no_file(SPEC) == MISSING
