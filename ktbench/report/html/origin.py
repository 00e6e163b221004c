"""Where a run comes from: its command, code and machine, as pairs of a name and a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from ktbench.core.plain import to_plain
from ktbench.report.machine import facts_of
from ktbench.report.text import DASH
from ktbench.store import Run

Pairs = tuple[tuple[str, str], ...]

_CODE = ("commit", "dirty", "versions", "python", "kernel")  # of the facts, those about software


def origin_of(run: Run) -> Pairs:
    """What was run, when, with which code on which machine."""
    header, facts, records = run.header, facts_of(run), run.records
    starts = sorted(record.started for record in records)
    dirty = facts.get("dirty")
    return (
        ("run", header.run),
        ("planned with", " ".join(header.command)),
        ("ablation", header.ablation or DASH),
        ("planned at", header.created),
        ("turns", f"{len(records)}, begun from {starts[0]} to {starts[-1]}" if starts else "none"),
        ("cells", f"{len(header.cells)} in {len(header.parts)} part{'' if len(header.parts) == 1 else 's'}"),
        ("commit", str(facts.get("commit") or DASH)),
        ("uncommitted changes", DASH if dirty is None else "yes" if dirty else "no"),
        ("code_id", ", ".join(dict.fromkeys([header.code_id, *(record.code_id for record in records)]))),
        ("env_id", ", ".join(dict.fromkeys([header.env_id, *(record.env_id for record in records)]))),
        *((f"versions: {name}", str(version)) for name, version in (facts.get("versions") or {}).items() if version),
        *((name, str(facts[name])) for name in ("python", "kernel") if facts.get(name)),
        *((f"measure: {name}", text) for name, text in _flat(to_plain(header.measure))),
    )


def machine_of(run: Run) -> Pairs:
    """All facts about the machine that the plan names; none where no sitting described it."""
    return tuple(_flat({name: fact for name, fact in facts_of(run).items() if name not in _CODE}))


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, fact in content.items():
        where = f"{above}{name}"
        if isinstance(fact, Mapping):
            yield from _flat(fact, f"{where}: ")
        else:
            yield where, _text(fact)


def _text(fact: object) -> str:
    if fact is None:
        return DASH
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if _is_list(fact):
        return ", ".join(f"[{_text(one)}]" if _is_list(one) else _text(one) for one in fact) or "none"
    return str(fact) or "yes"


def _is_list(fact: object) -> TypeGuard[Sequence[object]]:
    return isinstance(fact, Sequence) and not isinstance(fact, str)
