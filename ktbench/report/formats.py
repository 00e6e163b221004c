"""In what format peers run a precision, where that is not what its name says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.results.row import Row
from ktbench.results.settings import without_precision
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import BLOCK, BLOCK_BYTES, Precision


def format_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """`llama.cpp — runs int8 as Q8_0, 8.5 bits a weight`: once for each peer and precision that was timed."""
    found = dict.fromkeys(note for row in rows if row.timed and row.role == "arm" for note in _notes(row))
    return tuple(found)


def _notes(row: Row) -> Iterator[str]:
    if row.spec.system == "ktbench":
        return
    types = BY_NAME[row.spec.system].types
    for precision in _precisions(row.spec):
        held = types.get(precision, precision)
        if held.lower() != precision:
            nbytes = BLOCK_BYTES.get(held.lower())
            bits = "" if nbytes is None else f", {8 * nbytes / BLOCK:g} bits a weight"
            yield f"{without_precision(row.label)} — runs {precision} as {held}{bits}"


def _precisions(spec: RunSpec) -> tuple[Precision, ...]:
    """Those of the experts and, but for a layer alone, of the linear layers."""
    layer = spec.workload.phase == "layer"
    return (spec.precision,) if layer else (spec.precision, spec.device_precision)
