"""What ran the work, in a sentence: system, precision, threads, and who of the two roles ran what."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from ktbench.results import Run
from ktbench.results.row import Row, measured, systems_of
from ktbench.results.run import facts_of
from ktbench.results.settings import precision_word


def system_sentence(run: Run, rows: Sequence[Row], free: Container[str]) -> str:
    """The system, its precision, its threads and its roles, as far as they are not among the settings `free`."""
    spec, systems = rows[0].spec, systems_of(rows)
    parts = [f"system{'' if len(systems) == 1 else 's'} {' and '.join(systems)}"]
    if "precision" not in rows[0].settings:
        plain = next((row.spec.precision for row in rows if not precision_word(row.label)), None)
        parts.append(f"precision {plain} where an arm names none" if plain else "precision as the arms name it")
    elif "precision" not in free:
        parts.append(f"precision {spec.precision}")
    if "engine.threads" not in free:
        here = measured(rows)
        cpus = facts_of(run).get("cpus") if len(here) == len(rows) else None
        every = f"threads on all {len(cpus)} cores" if cpus else "threads on all cores"
        parts.append(every if spec.engine.threads is None else f"{spec.engine.threads} threads")
        parts += ["peers with as many as their remarks say"] if set(systems_of(here)) - {"ktbench"} else []
    parts += _roles(rows, free)
    return f"{', '.join(parts).capitalize()}."


def _roles(rows: Sequence[Row], free: Container[str]) -> Iterator[str]:
    """Who runs what, as far as it is not the plain case of one team of threads and the network's own modules."""
    row = next((row for row in [*measured(rows), *rows] if row.spec.system == "ktbench"), rows[0])
    spec, engine, placed = row.spec, row.spec.engine, row.spec.engine.placement
    if engine.roles == "split" and "engine.roles" not in free and "engine.device_threads" not in free:
        count = engine.device_threads
        cores = "half of the cores" if count is None else f"{count} core{'' if count == 1 else 's'}"
        yield f"{cores} for the device role and the others for the host role"
    if "engine.device" not in free and engine.device != "cpu":
        yield f"device role on {engine.device}"
    if "device_precision" not in free and any(row.spec.engine.packed_dense for row in rows):
        yield _linear(rows)
    placing = {"engine.placement.policy", "engine.placement.ratio"}
    if placed.policy != "host" and not any(key in free for key in placing):
        yield f"{placed.ratio:.0%} of the experts at the device ({placed.policy})"
    if "inject" not in free and spec.inject.name != "none" and not row.simulated:
        yield f"injection rules {row.settings['inject']}"


def _linear(rows: Sequence[Row]) -> str:
    """The precision of linear layers, which goes with that of the experts where both vary."""
    pairs = dict.fromkeys((row.spec.device_precision, row.spec.precision) for row in rows)
    if len({dense for dense, _ in pairs}) == 1:
        return f"linear layers in {rows[0].spec.device_precision}"
    if all(dense == experts for dense, experts in pairs):
        return "linear layers in the precision of the experts"
    return f"linear layers in {', '.join(f'{dense} (experts in {experts})' for dense, experts in pairs)}"
