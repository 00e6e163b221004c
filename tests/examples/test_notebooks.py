"""Notebooks of `examples` run as they are, and show what they say."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Reads the cells of code on stdin, runs them in one namespace and prints the repr of each that ends in a value.
_CODE = """
import ast, json, sys
names = {"__name__": "__main__"}
for source in json.load(sys.stdin):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    shown = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    pictured = hasattr(shown, "_repr_png_") and shown._repr_png_()[0].startswith(b"\\x89PNG")
    print(json.dumps("picture" if pictured else repr(shown)))
"""


def cells_of(path: Path) -> list[str]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_its_folder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    cells = cells_of(path)
    done = subprocess.run(
        [sys.executable, "-c", _CODE], input=json.dumps(cells), cwd=tmp_path / "examples",
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(shown) == len(cells)
    assert "picture" in shown
    assert "simulated" in shown[-2]
    assert shown[-1].startswith("'python -m ktbench run ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_python(path: Path) -> None:
    for source in cells_of(path):
        ast.parse(source)
