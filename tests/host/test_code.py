"""The identity of code is its content, wherever it lies."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import ktbench
from ktbench.host import code
from ktbench.host.code import MOST_CHANGES, Extension, code_files, code_id, read_changes, read_commit

NO_KERNELS = Extension(module=None, reason="not built")


def kernels(build: str) -> Extension:
    module = ModuleType("_kernels")
    module.build_id = lambda: build  # type: ignore[attr-defined]
    return Extension(module=module)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout: a package with one file, and its data folders beside it."""
    package = tmp_path / "checkout" / "ktbench"
    package.mkdir(parents=True)
    (package / "core.py").write_text("answer = 42")
    for folder in ("conf", "ablations", "evals", "reports"):
        (package.parent / folder).mkdir()
        (package.parent / folder / "one.yaml").write_text("a: 1")
    settle(monkeypatch, package, package.parent)
    return package


def settle(monkeypatch: pytest.MonkeyPatch, package: Path, data: Path) -> None:
    monkeypatch.setattr(code, "_PACKAGE", package)
    monkeypatch.setattr(code, "data_folder", lambda name: data / name)


@pytest.mark.usefixtures("package")
def test_the_identity_covers_python_and_the_yaml_that_steers_it() -> None:
    assert sorted(name for name, _ in code_files()) == [
        "ablations/one.yaml",
        "conf/one.yaml",
        "core.py",
        "evals/one.yaml",
    ]


def test_an_installed_wheel_has_the_identity_of_its_checkout(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_id(NO_KERNELS)
    installed = package.parents[1] / "site-packages" / "ktbench"
    shutil.copytree(package, installed)
    for folder in ("conf", "ablations", "evals", "reports"):
        shutil.copytree(package.parent / folder, installed / folder)
    settle(monkeypatch, installed, installed)
    assert code_id(NO_KERNELS) == before


@pytest.mark.parametrize("changed", ["ktbench/spec.py", "ktbench/new.py", "conf/one.yaml", "evals/new.yaml"])
def test_any_change_of_what_runs_changes_it(package: Path, changed: str) -> None:
    before = code_id(NO_KERNELS)
    (package.parent / changed).write_text("changed")
    assert code_id(NO_KERNELS) != before


def test_a_report_definition_changes_nothing(package: Path) -> None:
    before = code_id(NO_KERNELS)
    (package.parent / "reports" / "one.yaml").write_text("changed")
    assert code_id(NO_KERNELS) == before


def test_locks_and_copies_of_editors_change_nothing(package: Path) -> None:
    before = code_id(NO_KERNELS)
    (package / ".#core.py").symlink_to("user@host.1:2")  # Emacs; what it points to does not exist
    (package / "._core.py").write_text("resource fork")
    (package.parent / "conf" / ".#one.yaml").symlink_to("user@host.1:2")
    assert code_id(NO_KERNELS) == before


@pytest.mark.usefixtures("package")
def test_another_kernel_build_changes_it() -> None:
    assert len({code_id(NO_KERNELS), code_id(kernels("a")), code_id(kernels("b"))}) == 3
    assert code_id(kernels("a")) == code_id(kernels("a"))


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    assert read_commit(tmp_path) is None


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Git in an empty checkout."""

    def run(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    return run


def test_changes_of_a_checkout_make_its_files_of_its_commit(git: Callable[..., str], tmp_path: Path) -> None:
    old, new, secret = tmp_path / "ktbench/old.py", tmp_path / "kernels/new.cpp", tmp_path / "notes.txt"
    for file, text in ((old, "a = 1\n"), (new, "int b;\n"), (secret, "mine\n")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    git("add", "ktbench")
    git("commit", "--quiet", "-m", "start")
    old.write_text("a = 2\n")
    changes = read_changes(tmp_path)
    assert b"mine" not in changes
    git("checkout", "--quiet", "ktbench")
    new.unlink()
    (tmp_path / "c.diff").write_bytes(changes)
    git("apply", "c.diff")
    assert (old.read_text(), new.read_text()) == ("a = 2\n", "int b;\n")
    old.write_text("x" * 2 * MOST_CHANGES)
    assert len(read_changes(tmp_path)) < MOST_CHANGES + 100
    assert read_changes(tmp_path / "ktbench") == b""


def test_commit_and_dirty_flag_of_a_checkout(git: Callable[..., str], tmp_path: Path) -> None:
    git("commit", "--quiet", "--allow-empty", "-m", "start")
    commit = read_commit(tmp_path)
    assert commit is not None
    assert (commit.sha, commit.dirty) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "new.py").touch()
    again = read_commit(tmp_path)
    assert again is not None
    assert again.dirty


@pytest.mark.parametrize("name", ["spec/wire.py", "engine/serving/sampling.py"])
def test_this_package_is_covered(name: str) -> None:
    assert (name, Path(ktbench.__file__).parent / name) in set(code_files())
