"""`list`: ablations, models, machines and all else that can be named, with a line about each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ktbench.cli.catalogue import KINDS, entries_of
from ktbench.cli.streams import is_json
from ktbench.spec.errors import RequestError, instead


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
