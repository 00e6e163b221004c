"""Runs by folder and by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.results import LOG_NAME
from ktbench.results.find import find_run
from ktbench.spec.errors import RequestError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run below `runs/`, which has a folder of its own."""
    (tmp_path / "runs" / "decode" / "report").mkdir(parents=True)
    (tmp_path / "runs" / "decode" / LOG_NAME).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_found_by_its_name_and_by_its_folder(home: Path) -> None:
    for name in ("decode", "runs/decode", "./runs/decode/", "latest"):
        assert find_run(name) == Path("runs/decode")
    with pytest.raises(RequestError, match="decoed: no such run, did you mean decode"):
        find_run("decoed")


@pytest.mark.parametrize(("here", "name"), [("runs/decode", "."), ("runs/decode", "./"), ("runs/decode/report", "..")])
def test_the_run_that_one_stands_in_has_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, here: str, name: str
) -> None:
    monkeypatch.chdir(home / here)
    found = find_run(name)
    assert found.name == "decode" and found.samefile(home / "runs" / "decode")
