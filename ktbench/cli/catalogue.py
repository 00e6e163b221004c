"""`list`: what can be named on a command line, with a line about each from its data file or table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from ktbench.cli.streams import is_json
from ktbench.resources import option_files
from ktbench.spec.errors import RequestError, instead
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import OURS, PEERS
from ktbench.spec.weights import BLOCK_BYTES, FORMATS, Format, Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One name: the `word` that chooses it, and what it is."""

    name: str
    word: str
    about: str


def entries_of(kind: str) -> list[Entry]:
    """What there is of a kind of `KINDS`, in the order of its table or by name."""
    return [*KINDS[kind]()]


def leading_comment(text: str) -> str:
    """The comment that a YAML file begins with, as running text."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _ablations() -> Iterator[Entry]:
    for name, path in option_files("ablation").items():
        content = _content(path)
        yield Entry(name=name, word=f"{verb_of(content)} +ablation={name}", about=title_of(content))


def title_of(ablation: Mapping[str, Any]) -> str:
    """The title of an ablation by the content of its file; of a model that it chooses, the model's."""
    model = option_files("model").get(chosen_by(ablation).get("model", ""))
    title = str(ablation["sweep"].get("title", ""))
    return title if model is None else title.replace("${model.title}", str(_content(model)["title"]))


def verb_of(ablation: Mapping[str, Any]) -> str:
    """What runs an ablation: one that asks a suite is for `eval`."""
    return "eval" if "suite" in chosen_by(ablation) else "sweep"


def chosen_by(ablation: Mapping[str, Any]) -> dict[str, str]:
    """Options of groups that a file chooses: `{"model": "nano"}`."""
    pairs = (pair for one in ablation.get("defaults", ()) if isinstance(one, dict) for pair in one.items())
    return {str(key).removeprefix("override").strip().lstrip("/"): str(value) for key, value in pairs}


def _options(group: str, sign: str = "") -> Iterator[Entry]:
    for name, path in option_files(group).items():
        about = str(_content(path).get("title") or _first_sentence(leading_comment(path.read_text(encoding="utf-8"))))
        yield Entry(name=name, word=f"{sign}{group}={name}", about=about)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!\bFig)\. ", text, maxsplit=1)[0].rstrip(".")


@cache
def _content(path: Path) -> Mapping[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _systems() -> Iterator[Entry]:
    yield Entry(name=OURS, word=f"system={OURS}", about="the engine of ktbench")
    for peer in PEERS:
        needs = f"; {peer.install}" if peer.install else ""
        about = peer.unusable or f"{peer.title}: {', '.join(peer.phases)}{needs}"
        yield Entry(name=peer.name, word=f"system={peer.name}", about=about)


def _features() -> Iterator[Entry]:
    for one in FEATURES:
        value = next((str(name) for name in one.names if name != one.off and not isinstance(one.off, int)), "N")
        word = f"{one.key}={value}" if one.valued else f"{one.key}=true"
        yield Entry(name=one.word, word=word, about=one.title)


def _precisions() -> Iterator[Entry]:
    for name, one in FORMATS.items():
        yield Entry(name=name, word=f"precision={name}", about=_format_words(name, one))


def _format_words(name: Precision, one: Format) -> str:
    """Bits are those that a weight takes here; a format of checkpoints alone may be packed in more than its own."""
    if not one.from_numbers:
        held = 8 * BLOCK_BYTES[name] / (one.group or 1)
        return f"{one.title}: held in {held:.3g} bits a weight{_scale_words(one)}; of checkpoints that are stored in it"
    return f"{one.title}: {one.bits} bits{_scale_words(one)}"


def _scale_words(one: Format) -> str:
    if one.super_blocks:
        return f" in super-blocks of {one.group} weights"
    if one.group:
        return f", a scale for each {one.group} weights of a row"
    return ", a scale for each row" if one.row_bytes else ""


KINDS: Mapping[str, Callable[[], Iterator[Entry]]] = {
    "ablations": _ablations,
    "models": lambda: _options("model"),
    "machines": lambda: _options("machine"),
    "workloads": lambda: _options("workload"),
    "suites": lambda: _options("suite", "+"),
    "systems": _systems,
    "features": _features,
    "precisions": _precisions,
}


def run(overrides: Sequence[str]) -> int:
    """Print what there is of a kind, without one how much there is of each. Raises RequestError for another kind."""
    if len(overrides) > 1:
        raise RequestError(f"list {' '.join(overrides)}: one kind at a time; allowed are {', '.join(KINDS)}")
    if overrides and overrides[0] not in KINDS:
        raise RequestError(f"list {overrides[0]}: unknown{instead(overrides[0], KINDS)}")
    print("\n".join(_lines(overrides[0]) if overrides else _kinds()))
    return 0


def _lines(kind: str) -> list[str]:
    return [json.dumps(asdict(one)) for one in entries_of(kind)] if is_json() else _entries(kind)


def _kinds() -> list[str]:
    counts = {kind: len(entries_of(kind)) for kind in KINDS}
    if is_json():
        return [json.dumps({"kind": kind, "entries": count}) for kind, count in counts.items()]
    return [f"{kind:<12} {count:>3}  ktbench list {kind}" for kind, count in counts.items()]


def _entries(kind: str) -> list[str]:
    entries = entries_of(kind)
    names, words = (max(len(getattr(one, field)) for one in entries) for field in ("name", "word"))
    return [f"{one.name:<{names}}  {one.word:<{words}}  {one.about}".rstrip() for one in entries]
