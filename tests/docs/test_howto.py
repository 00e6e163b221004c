"""What the how-tos have readers write is what the configuration takes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from docs.gen.repository import DOCS
from ktbench.config.freeze import ModelFiles, freeze_model
from ktbench.eval.tasks.sources import load_task
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.wire import from_plain


def written(page: str) -> dict[str, Any]:
    """The YAML block of a how-to."""
    _, _, rest = (DOCS / "howto" / page).read_text(encoding="utf-8").partition("```yaml\n")
    return dict(yaml.safe_load(rest.partition("```")[0]))


def test_the_model_is_one() -> None:
    model = from_plain(freeze_model(written("model.md"), ModelFiles(), phase="decode"), ModelSpec)
    assert (model.name, model.shape.moe_layers, model.shape.experts, model.shape.top_k) == ("my_model", 4, 8, 2)


def test_the_suite_is_asked() -> None:
    pytest.importorskip("lm_eval")
    suite = from_plain(written("suite.md") | {"limit": 2}, SuiteSpec)
    assert [len(load_task(task, suite).questions) for task in suite.tasks] == [2, 2]


@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "howto").glob("*.md")))
def test_files_that_a_how_to_names_are_there(page: str) -> None:
    text = (DOCS / "howto" / page).read_text(encoding="utf-8")
    named = {word for word in text.split("`")[1::2] if word.startswith(("ktbench/", "kernels/", "tests/", "conf/"))}
    assert all((DOCS.parent / name).exists() for name in named if not set(name) & set("<>* ")), named
