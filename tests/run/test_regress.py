"""The session `regress` of noxfile.py: when it builds a commit again, and what it says when it is interrupted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Session:
    """In place of a session of nox: what it was told to run, and what the programs would have made."""

    def __init__(self, *posargs: str) -> None:
        self.posargs, self.ran, self.warned = posargs, list[tuple[str, ...]](), list[str]()
        self.compiler, self.stops_at = "c++ 12", ""

    def run(self, *words: str, **_: Any) -> str:
        if words[:3] == ("python", "-m", "venv"):
            (Path(words[-1]) / "lib/python3/site-packages").mkdir(parents=True, exist_ok=True)
        if words[:3] == ("git", "worktree", "add"):
            (Path(words[-2]) / "build").mkdir(parents=True)
        if "sweep" in words:
            log = Path("runs/regress-then-a/log.jsonl")
            log.parent.mkdir(parents=True)
            log.touch()
        if self.stops_at in words:
            raise KeyboardInterrupt
        self.ran.append(words)
        return f"{'0' * 40}\n" if words[0] == "git" else self.compiler

    def built(self) -> bool:
        """Whether anything was built since it was last asked."""
        found = any("install" in words for words in self.ran)
        self.ran.clear()
        return found

    def warn(self, line: str) -> None:
        self.warned.append(line)


@pytest.fixture(scope="module")
def noxfile() -> Any:
    """The module, which nox takes the sessions of but once."""
    pytest.importorskip("nox", reason="nox is not installed")
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nox_sessions(noxfile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The sessions, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/bin/{command}")
    return noxfile


def test_a_commit_is_built_again_with_another_compiler_flags_or_interpreter(
    nox_sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()

    def built() -> bool:
        assert nox_sessions._built(session, "HEAD").endswith("env/bin/python")
        return session.built()

    monkeypatch.delenv("CXXFLAGS", raising=False)
    assert (built(), built()) == (True, False)
    build = Path(".nox/regress") / ("0" * 12) / "tree/build"
    assert build.is_dir()
    monkeypatch.setenv("CXXFLAGS", "-O1")
    assert (built(), built()) == (True, False)
    assert not build.exists(), "CMake would go on with the flags that it was first given"
    session.compiler = "c++ 13"
    assert (built(), built()) == (True, False)
    monkeypatch.setattr(nox_sessions, "sys", SimpleNamespace(version="3.99"))
    assert (built(), built()) == (True, False)


def test_without_the_usual_compiler_the_build_finds_its_own(nox_sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda command: None)
    monkeypatch.delenv("CXX", raising=False)
    session = Session()
    session.stops_at = "c++"
    nox_sessions._built(session, "HEAD")
    assert session.built()
    assert "c++ CXXFLAGS=\nnot found\n" in (Path(".nox/regress") / ("0" * 12) / "built").read_text()


def test_a_build_that_was_stopped_is_done_again(nox_sessions: Any) -> None:
    session = Session()
    nox_sessions._built(session, "HEAD")
    assert session.built()
    session.compiler, session.stops_at = "c++ 13", "install"
    with pytest.raises(KeyboardInterrupt):
        nox_sessions._built(session, "HEAD")
    assert not session.built()
    session.compiler, session.stops_at = "c++ 12", ""
    nox_sessions._built(session, "HEAD")
    assert session.built(), "what there is was half made by another compiler"


def test_an_interrupted_comparison_says_how_to_go_on(nox_sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("v1", "v2", "+ablation=decode", "measure.max_rounds=3")
    session.stops_at = "sweep"
    monkeypatch.setattr(nox_sessions, "datetime", SimpleNamespace(now=lambda zone: Stamp()))
    with pytest.raises(KeyboardInterrupt):
        nox_sessions.regress.func(session)
    (said,) = session.warned
    assert "-- v1 v2 +ablation=decode measure.max_rounds=3 resume=then" in said


class Stamp:
    """A time whose name is `then`."""

    def __format__(self, spec: str) -> str:
        return "then"
