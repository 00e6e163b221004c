"""What pip calls the distribution and installs with it, and what messages say of that."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from ktbench import resources
from ktbench.resources import DISTRIBUTION, in_checkout, install_command, shipped_path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What is imported under another name than that of its distribution.
MODULES = {"hydra-core": "hydra", "pyyaml": "yaml"}


def test_commands_and_extras_name_the_distribution() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    wanted = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    assert [one for one in wanted if re.match(r"ktbench\b(?!-moe)", one)] == []


def test_an_installation_and_a_checkout_name_what_works_in_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "a b" / "ktbench")
    assert install_command("train") == f"python -m pip install '{DISTRIBUTION}[train]'"
    assert in_checkout("nox -s peers") != "nox -s peers"
    (tmp_path / "a b" / "pyproject.toml").touch()
    assert install_command("train") == f"python -m pip install -e '{tmp_path}/a b[train]'"
    assert in_checkout("nox -s peers") == "nox -s peers"


def test_every_extra_that_a_message_names_is_there() -> None:
    named = {
        node.args[0].value
        for path in (ROOT / "ktbench").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "install_command"
        and isinstance(node.args[0], ast.Constant)
    }
    assert named and named <= set(PROJECT["optional-dependencies"])


def test_what_is_imported_when_modules_load_is_asked_for() -> None:
    """Of the packages that ktbench imports at the top of a module, every one is a dependency or of an extra."""
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\[><=;]", one)[0] for one in asked}
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "ktbench").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported - set(sys.stdlib_module_names) - modules == {"ktbench"}


def test_a_shipped_file_is_found_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_path("conf/prices.example.yaml", "conf").is_file()
    own = tmp_path / "conf" / "prices.example.yaml"
    own.parent.mkdir()
    own.touch()
    assert shipped_path("conf/prices.example.yaml", "conf").resolve() == own


def test_a_type_checker_is_told_that_the_package_has_types() -> None:
    """Or it takes `ktbench.sweep` of an installed package for Any (PEP 561)."""
    assert (ROOT / "ktbench" / "py.typed").is_file()
