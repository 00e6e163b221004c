"""Families through folders as released, a few of them by default; `nox -s families` shows all in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.engines import needs_vector
from tests.engine.families.releases import LAYOUTS, TOLERANCE, Layout, differences
from tests.engine.families.zoo import FAMILIES

# A buffer in float32, a router in float32, names that only Transformers knows, hash layers with norms in float32.
QUICK = ("lfm2_moe", "hunyuan_v1_moe", "granitemoehybrid", "deepseek_v4")
OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES if name not in QUICK]


@needs_vector()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_a_saved_folder_gives_the_logits_of_transformers(name: str, layout: Layout, tmp_path: Path) -> None:
    found = differences(name, tmp_path, layout)
    assert found.pop("base") == 0
    assert max(found.values()) < TOLERANCE
