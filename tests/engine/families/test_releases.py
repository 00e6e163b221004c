"""A few families through folders as released; `nox -s families` compares them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.engines import needs_vector
from tests.engine.families.releases import LAYOUTS, TOLERANCE, Layout, differences

# Float32 buffers, one that only Transformers renames with a stack of experts, hash layers with float32 norms.
QUICK = ("lfm2_moe", "granitemoehybrid", "deepseek_v4")


@needs_vector()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", QUICK)
def test_a_saved_folder_gives_the_logits_of_transformers(name: str, layout: Layout, tmp_path: Path) -> None:
    found = differences(name, tmp_path, layout)
    assert found.pop("base") == 0
    assert max(found.values()) < TOLERANCE
