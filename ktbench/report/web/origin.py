"""Where a run comes from: its command, code and machines, as pairs of a name and a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from ktbench.report.text import counted, names_by
from ktbench.results import Run
from ktbench.results.quantities.text import DASH
from ktbench.results.run import Facts, machines_of
from ktbench.spec.wire import to_plain

Pairs = tuple[tuple[str, str], ...]

_CODE = ("commit", "dirty", "versions", "python", "kernel")  # of the facts, those about software


def origin_of(run: Run) -> Pairs:
    """What was run, when, with which code on which machines."""
    header, machines, records = run.header, machines_of(run), run.records
    starts = sorted(record.started for record in records)
    software = dict.fromkeys(name for facts in machines.values() for name in _software(facts))
    return (
        ("run", header.run),
        ("planned with", " ".join(header.command)),
        ("ablation", header.ablation or DASH),
        ("planned at", header.created),
        ("trials", f"{len(records)}, begun from {starts[0]} to {starts[-1]}" if starts else "none"),
        ("cells", f"{len(header.cells)} in {counted(len(header.parts), 'part')}"),
        ("commit", _on_each(machines, lambda facts: facts.get("commit") or None)),
        ("uncommitted changes", _on_each(machines, lambda facts: facts.get("dirty"))),
        ("code_id", ", ".join(dict.fromkeys([header.code_id, *(record.code_id for record in records)]))),
        ("env_id", ", ".join(dict.fromkeys([header.env_id, *(record.env_id for record in records)]))),
        *((name, _on_each(machines, lambda facts, name=name: _software(facts).get(name))) for name in software),  # type: ignore[misc]
        *((f"measure: {name}", text) for name, text in _flat(to_plain(header.measure))),
    )


def _software(facts: Facts) -> dict[str, object]:
    """Versions that are known."""
    versions = {f"versions: {name}": version for name, version in (facts.get("versions") or {}).items()}
    named = versions | {name: facts.get(name) for name in ("python", "kernel")}
    return {name: version for name, version in named.items() if version}


def _on_each(machines: Mapping[str, Facts], fact: Callable[[Facts], object]) -> str:
    """A fact of all machines; where it is not the same on all, with the ids of those that it is of."""
    holders = names_by((env_id, _text(fact(facts))) for env_id, facts in machines.items())
    several = len(holders) > 1
    return "; ".join(f"{text} on {', '.join(ids)}" if several else text for text, ids in holders.items()) or DASH


def facts_by_machine(run: Run) -> dict[str, Pairs]:
    """All facts about each machine whose trials count, by its id; none where no worker session described one."""
    return {
        env_id: tuple(_flat({name: fact for name, fact in facts.items() if name not in _CODE}))
        for env_id, facts in machines_of(run).items()
    }


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
