"""The lean device role: packed linear layers and recorded steps give what plain Transformers gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.core.spec import ModelSpec, WorkloadSpec
from ktbench.engine.hybrid import HybridEngine
from tests.engine.engines import TOLERANCE, cell, changed, engine_for, logits, needs_avx512, plain, relative, saved
from tests.engine.prompts import together
from tests.engine.tiny import decode, prefill, run

pytestmark = [needs_avx512(), pytest.mark.peers]

_EVERYWHERE = ["full_attention"] * 4
# The prompt of `decode` has 11 tokens: windows of 8 have been left behind before the first step.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, biases": ("qwen3_moe", {"attention_bias": True}),
    "qwen3_moe, tied head": ("qwen3_moe", {"tie_word_embeddings": True}),
    "qwen3_moe, window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}),
    "qwen2_moe": ("qwen2_moe", {}),
    "mixtral": ("mixtral", {}),
    "mixtral, window": ("mixtral", {"sliding_window": 8}),
    "glm4_moe": ("glm4_moe", {"attention_bias": True}),
    "glm4_moe, norms of heads": ("glm4_moe", {"use_qk_norm": True}),
    "deepseek_v3": ("deepseek_v3", {}),
    "gpt_oss": ("gpt_oss", {}),
    "olmoe": ("olmoe", {}),
    "qwen3_next, norms with offset": ("qwen3_next", {"layer_types": _EVERYWHERE}),
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
STEPS = 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModelSpec]]:
    """Checkpoints of all forms."""
    folder: Path = tmp_path_factory.mktemp("forms")
    yield {form: saved(changed(name, **changes), folder / form) for form, (name, changes) in FORMS.items()}
    _engine.cache_clear()


class Forms:
    """Every form's engine for base and +l, made once."""
