"""Reference pages: verbs, features, peers and keys from their tables, the Python API by its docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from docs.gen.repository import ROOT, table, toctree
from ktbench.cli import VERBS, exit_codes, module_of
from ktbench.cli.catalogue import leading_comment
from ktbench.cli.keys import OF_A_CELL, OF_RUN, OF_RUNS, OF_SUITES, SPECS, Key, keys_of
from ktbench.serve.settings import ChatSettings, ServerSettings
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import PEERS

ROOMS = ("api", "spec", "results", "report", "sim")
KEYS: dict[str, type] = {**SPECS, "serve": ServerSettings, "chat": ChatSettings}
GROUPS = {
    "model": "conf/model",
    "workload": "conf/workload",
    "machine": "conf/machine",
    "inject": "conf/inject",
    "suite": "evals",
}


def reference_pages() -> dict[str, str]:
    """Path and text of every page of the reference, and their part of the navigation."""
    pages = {"Verbs": ("cli.md", _verbs()), "Features and peers": ("features.md", _features())}
    pages |= {"Configuration": ("config.md", _configuration())}
    pages |= {f"ktbench.{room}": (f"python/{room}.md", _room(room)) for room in ROOMS}
    contents = toctree({title: path for title, (path, _) in pages.items()})
    return {f"reference/{path}": text for path, text in pages.values()} | {"reference/SUMMARY.md": contents}


def _verbs() -> str:
    lines = ["# Verbs\n\n`python -m ktbench VERB [KEY=VALUE …]`; keys are [configuration](config.md).\n"]
    lines += [f"Exit codes: {exit_codes()}.\n"]
    for verb in VERBS:
        run = module_of(verb).run
        lines.append(f"## {verb}\n\n{_plain(VERBS[verb])}.\n\n{inspect.getdoc(run)}\n")
    return "\n".join(lines)


def _features() -> str:
    rows = [
        [_words(f.key, f.valued), f.title, ", ".join(f.needs) or "–", _either(f.requires), f"`{f.counter}`"]
        for f in FEATURES
    ]
    peers = [[f"`{p.name}`", p.title, ", ".join(p.phases), ", ".join(p.types), p.install or "–"] for p in PEERS]
    return (
        "# Features and peers\n\nOne row each of `spec/features/table.py` and `spec/peers.py` in `ktbench/`. The "
        "counter moves when a feature runs and stands still when it does not: a row where it does otherwise is IDLE."
        "\n\n"
        + table(["override", "is", "needs of the machine", "needs one of", "counter"], rows)
        + "\n\n## Peers\n\n"
        + table(["arm", "is", "phases", "precisions", "installed by"], peers)
        + "\n"
    )


def _words(key: str, valued: bool) -> str:
    return f"`{key}=N`" if valued else f"`{key}=true`"


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(f"`+{name}`" for name in names) or "–"


def _configuration() -> str:
    lines = [
        "# Configuration\n\nKeys are overrides of every verb that takes a cell. A group is chosen by name "
        "(`model=mixtral_8x7b`), a key set by value (`engine.best=true`), and a list of values is an axis of a "
        "sweep.\n",
        "## Groups\n",
    ]
    for group, folder in GROUPS.items():
        lines.append(f"### {group}\n\nFiles of `{folder}`.\n\n{table(['option', ''], list(_options(folder)))}\n")
    alone = [*OF_A_CELL, *OF_RUN, *OF_RUNS, *OF_SUITES]
    lines.append(f"## Cells and runs\n\n{_keys(alone)}\n")
    for name, spec in KEYS.items():
        keys = _keys(keys_of(name, spec))
        lines.append(f"## {name}\n\n{_plain(inspect.getdoc(spec) or '')}\n\n{keys}\n")
    return "\n".join(lines)


def _options(folder: str) -> Iterator[list[str]]:
    for path in sorted((ROOT / folder).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        yield [f"`{path.stem}`", _plain(leading_comment(text) or str(yaml.safe_load(text).get("title") or "–"))]


def _keys(keys: Iterable[Key]) -> str:
    rows = [[f"`{key.name}`", _code(key.default), _code(key.allowed), _plain(key.about) or "–"] for key in keys]
    return table(["key", "default", "allowed", ""], rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else "–"


def _plain(text: str) -> str:
    """Text of a comment or a docstring in which Markdown sees neither HTML nor links."""
    return text.replace("<", "&lt;").replace("[", "\\[")


def _room(room: str) -> str:
    """The public functions and classes of a room, module by module; mkdocstrings reads them without importing."""
    folder = ROOT / "ktbench" / room
    lines = [f"# ktbench.{room}\n"]
    modules = [path for path in sorted(folder.rglob("*.py")) if path.stem != "__init__" or room == "api"]
    lines += [f"::: {_dotted(path).removesuffix('.__init__')}\n" for path in modules]
    return "\n".join(lines)


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)
