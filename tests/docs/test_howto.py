"""What the how-tos have readers write is what the configuration takes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.gen.repository import DOCS
from ktbench.cli import main as ktbench
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


def test_published_numbers_stand_beside_their_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "howto" / "published.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    numbers = tmp_path / "my_numbers.csv"
    numbers.write_text(text.partition("```csv\n")[2].partition("```")[0])
    (tmp_path / "my_figure.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert ktbench(["sweep", "+ablation=my_figure.yaml", "run_name=beside"]) == 0
    numbers.unlink()
    assert ktbench(["report", "beside"]) == 0
    lines = list(csv.DictReader((tmp_path / "runs/beside/report/paper.csv").read_text().splitlines()))
    found = {line["id"]: (line["published"], bool(line["simulated"])) for line in lines if line["id"]}
    assert found == {"my_numbers-1": ("5.9", True), "my_numbers-2": ("3.0", False)}


@pytest.mark.parametrize(
    ("name", "content"),
    [("my_numbers.csv", None), ("my_numbers.csv", "id,figure\n"), ("fig12.csv", "id,figure\n"), ("x.csv", "\x00")],
)
def test_a_file_of_numbers_that_is_none_is_refused(
    name: str, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "howto" / "published.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ablation = text.partition("```yaml\n")[2].partition("```")[0].replace("my_numbers.csv", name)
    (tmp_path / "my_figure.yaml").write_text(ablation)
    if content is not None:
        (tmp_path / name).write_text(content)
    assert ktbench(["sweep", "+ablation=my_figure.yaml"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert name in said


@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "howto").glob("*.md")))
def test_files_that_a_how_to_names_are_there(page: str) -> None:
    text = (DOCS / "howto" / page).read_text(encoding="utf-8")
    named = {word for word in text.split("`")[1::2] if word.startswith(("ktbench/", "kernels/", "tests/", "conf/"))}
    assert all((DOCS.parent / name).exists() for name in named if not set(name) & set("<>* ")), named
