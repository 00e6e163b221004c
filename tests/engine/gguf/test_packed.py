"""A GGUF file whose packed weights are kept in a folder: blocks are mapped as they were packed, and read no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ktbench.engine.gguf.reading import MappedWeights
from tests.engine.engines import FUSED, cell, engine_for, logits, needs_vector
from tests.engine.tiny import decode


@needs_vector()
@pytest.mark.parametrize("name", ["qwen2_57b_a14b", "deepseek_v3"])
def test_mapped_blocks_give_the_logits_of_the_file(
    name: str, exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: Any = {"precision": "q8_0", "device_precision": "q8_0", **FUSED, "packed_dense": True}
    model, _ = exported(name, "Q8_0")
    expected = logits(engine_for(alone := cell(model, decode(), **kinds)), alone)
    kept, read = cell(replace(model, packed=str(tmp_path)), decode(), **kinds), set[str]()
    assert all(map(torch.equal, logits(engine_for(kept), kept), expected))
    monkeypatch.setattr(MappedWeights, "rows", _noted(MappedWeights.rows, read))
    assert all(map(torch.equal, logits(engine_for(kept), kept), expected))
    assert not any("_exps" in name for name in read)


def _noted(rows: Any, read: set[str]) -> Any:
    return lambda self, name: (read.add(name), rows(self, name))[1]
