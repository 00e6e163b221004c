"""One version everywhere, and a wheel knows where it comes from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import ktbench
from ktbench.host.code import Build, Commit, read_build, read_commit

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "kernels" / "cmake" / "build_info.cmake"
HEAVY = ("numpy", "torch", "hydra", "transformers", "pandas", "matplotlib")


def test_citation_and_changelog_name_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == ktbench.__version__
    headings = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == ktbench.__version__


def test_the_licence_travels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE"]
    assert "version" in project["dynamic"]


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_is_asked_first_loads_no_library(tmp_path: Path, word: str) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "ktbench", word]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ktbench.cli" in loaded
    assert not loaded & set(HEAVY)


def build_info(checkout: Path, package: Path) -> None:
    lists = [f"-DCHECKOUT={checkout}", f"-DOUTPUT={package / '_build.json'}", "-DTOOLS=GNU 12.2.0 Release"]
    subprocess.run(["cmake", *lists, "-P", str(SCRIPT)], check=True)


@pytest.mark.skipif(not all(map(shutil.which, ("cmake", "git"))), reason="needs cmake and git")
def test_a_wheel_remembers_the_commit_it_was_built_from(tmp_path: Path) -> None:
    checkout, package = tmp_path / "checkout", tmp_path / "site-packages" / "ktbench"
    for folder in (checkout, package):
        folder.mkdir(parents=True)
    build_info(checkout, package)
    assert read_build(package) == Build(commit=None, tools="GNU 12.2.0 Release")
    assert read_commit(package.parent) is None
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "-m", "start"]):
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(checkout), *named, *words], check=True)
    build_info(checkout, package)
    commit = read_commit(checkout)
    assert commit is not None
    assert (read_commit(package.parent), commit.dirty) == (commit, False)
    (checkout / "new.py").touch()
    build_info(checkout, package)
    assert read_commit(package.parent) == Commit(sha=commit.sha, dirty=True)
    assert str(read_commit(package.parent)) == f"{commit.sha[:12]} with changes"


def test_an_installation_without_a_record_has_no_commit(tmp_path: Path) -> None:
    assert read_build(tmp_path) is None
    assert read_commit(tmp_path) is None


def test_a_broken_record_is_no_silent_none(tmp_path: Path) -> None:
    (tmp_path / "_build.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        read_build(tmp_path)
