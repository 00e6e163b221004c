"""Slow checks run in CI where what they cover has changed since they passed."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

_FILE = Path(__file__).parents[1] / ".ci" / "changed.py"


@pytest.fixture
def changed(tmp_path: Path) -> ModuleType:
    """The program, on a checkout of its own with one file that the peers' tests cover and one that nothing does."""
    spec = importlib.util.spec_from_file_location("changed", _FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path
    for name in ("ktbench/peers/rows.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    (tmp_path / ".ci").mkdir()
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return module


def test_a_check_runs_until_it_has_passed_and_again_after_a_change(changed: ModuleType) -> None:
    assert changed.main(["peers"]) == 0
    assert changed.main(["--passed", "peers"]) == 0
    assert changed.main(["peers"]) == 1
    (changed.ROOT / "README.md").write_text("second")
    assert changed.main(["peers"]) == 1
    (changed.ROOT / "ktbench/peers/rows.py").write_text("second")
    assert changed.main(["peers"]) == 0


def test_what_is_covered_exists() -> None:
    spec = importlib.util.spec_from_file_location("changed", _FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [path for paths in module.COVERED.values() for path in paths if not (_FILE.parents[1] / path).exists()] == []


@pytest.mark.parametrize("words", [[], ["nonsense"], ["--passed"], ["--other", "peers"]])
def test_other_words_are_refused(changed: ModuleType, words: list[str]) -> None:
    assert changed.main(words) == 2
