"""The import table of docs/architecture.md, held against the code."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from docs.gen.rooms import KERNELS, read_rooms
from ktbench import sim

PACKAGE = Path(__file__).parents[1] / "ktbench"
TABLE = read_rooms((PACKAGE.parent / "docs" / "architecture.md").read_text())
MAY_IMPORT = {  # of `cli`, which may import all, there is nothing to hold
    room: {"_kernels" if one == KERNELS else one for one in rooms} for room, rooms in TABLE.items() if room != "cli"
}
ROOMS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
MOST_FILES = 25
NAMES = {name for names in sim.SEAM.values() for name in names}


FEATURES = ("record", "table", "labels", "outside")
CIRCLES = {  # the table of features asks whole specs, which hold its values; a document knows how it is drawn
    frozenset(
        f"ktbench.spec.{name}"
        for name in ("engine", "limits", "machine", "run_spec", "features", *(f"features.{part}" for part in FEATURES))
    ),
    frozenset(
        f"ktbench.report.{name}"
        for name in ("documents", *(f"figures.{kind}" for kind in ("answers", "draw", "published", "shares", "speeds")))
    ),
}
OUTSIDE = {"hydra": {"config"}, "omegaconf": {"config"}}


@cache
def imported(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_room_is_in_the_table() -> None:
    assert set(TABLE) == ROOMS


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_room_imports_only_what_it_may(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "ktbench" and len(parts) > 1 and parts[1] not in {room, "resources", "files"}:
                assert parts[1] in MAY_IMPORT[room], f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("library", sorted(OUTSIDE))
def test_library_stays_in_its_room(library: str) -> None:
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == library for name in imported(path))
    }
    assert users <= OUTSIDE[library]


def test_spec_needs_neither_numpy_nor_files() -> None:
    paths = list((PACKAGE / "spec").rglob("*.py"))
    assert paths
    for path in paths:
        assert not {name.split(".")[0] for name in imported(path)} & {"numpy", "pathlib", "os", "io", "torch"}


def test_the_simulator_is_entered_by_its_seam_alone() -> None:
    """Other rooms import the names of `ktbench.sim`, and of its modules none."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] != "sim":
            for name in imported(path):
                assert name.split(".")[:2] != ["ktbench", "sim"] or name.count(".") < 3, f"{path} imports {name}"
                assert name.removeprefix("ktbench.sim.") in {name, *NAMES}, f"{path} imports {name}"
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sim":
                    assert node.attr in NAMES, f"{path} takes {node.attr} of the simulator"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_of_the_seam_is_there(name: str) -> None:
    assert getattr(sim, name) is not None


def links() -> dict[str, set[str]]:
    """Modules that each module of the package names in an import, for annotations included."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "__init__.py"  # the version, and the API as users see it
    }
    linked = {
        module: {name if name in names else name.rpartition(".")[0] for name in imported(path)}
        for module, path in names.items()
    }
    return {module: (below & names.keys()) - {module} for module, below in linked.items()}


def circles(of: dict[str, set[str]]) -> set[frozenset[str]]:
    """Modules that reach each other."""
    reached = {module: set(below) for module, below in of.items()}
    for middle in of:  # Warshall's closure
        for module in of:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    return {
        frozenset(other for other in below if module in reached[other])
        for module, below in reached.items()
        if module in below
    }


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset("bc")}


def test_no_module_imports_what_imports_it() -> None:
    """Not for its annotations, either: who reads one would have to read both."""
    assert [sorted(circle) for circle in circles(links()) - CIRCLES] == []


def test_folders_stay_small() -> None:
    """A reader holds the names of one folder in mind at a time."""
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}
