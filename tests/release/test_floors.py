"""The oldest torch and transformers that pyproject.toml allows have the names that ktbench uses."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "ktbench").rglob("*.py"))
# The newest names in use, and the first release that has them (found by reading releases; Transformers 5.17 says of
# grouped_mm itself when it came).
NEWEST = {
    "torch": {"torch.nn.functional:grouped_mm": "2.10"},
    "transformers": {
        "transformers.cache_utils:CacheLayerMixin.get_max_length": "5.13",
        "transformers.models.deepseek_v3.modeling_deepseek_v3:DeepseekV3Attention.expand_kv": "5.15",
    },
}


def numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def floor(package: str) -> tuple[int, ...]:
    """The least release that is allowed."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (found,) = (match for one in stated if (match := re.match(rf"{package}>=([\d.]+)", one)))
    return numbers(found.group(1))


def found(place: str) -> object:
    """What `module:name.name` stands for."""
    module, _, names = place.partition(":")
    held: object = importlib.import_module(module)
    for name in names.split("."):
        held = getattr(held, name)
    return held


@pytest.mark.parametrize(("package", "place"), [(package, place) for package in NEWEST for place in NEWEST[package]])
def test_floors_have_the_newest_names(package: str, place: str) -> None:
    name = place.rpartition(".")[2].rpartition(":")[2]
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in SOURCES), f"{name} is not in use any more"
    assert found(place) is not None
    assert floor(package) >= numbers(NEWEST[package][place])
    assert numbers(version(package)) >= floor(package)


@cache
def imported() -> frozenset[tuple[str, str]]:
    """(module, name) of every import of a name from torch or transformers in ktbench."""
    return frozenset(pair for path in SOURCES for pair in _imports(ast.parse(path.read_text())))


def _imports(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in NEWEST:
            yield from ((node.module or "", name.name) for name in node.names)


def test_every_name_that_is_imported_is_there() -> None:
    """In the installed releases: those of the floors where these are installed."""
    assert ("torch.nn.functional", "grouped_mm") in imported()
    missing = [f"{module}.{name}" for module, name in sorted(imported()) if not _is_there(module, name)]
    assert missing == []


def _is_there(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
