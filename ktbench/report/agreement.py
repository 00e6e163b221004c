"""Whether systems that are compared give the same answers: their logits, held against each other."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.text import DASH, number
from ktbench.results.row import Row, groups_of, systems_of

MARK = "†"
REFERENCE = "reference"
UNPROVEN = (
    "not shown to give the same answers as the other systems: its speed is not a comparison of equal work"
    f" ({MARK})"
)  # fmt: skip


def top1_text(row: Row) -> str:
    """The share of positions in percent, `reference` for the row that others are held against."""
    return _written(row, "" if row.agreement is None else f"{100 * row.agreement.top1:.1f}")


def kl_text(row: Row) -> str:
    """The divergence in nats, `reference` for the row that others are held against."""
    return _written(row, "" if row.agreement is None else _nats(row.agreement.kl_nats))


def _written(row: Row, text: str) -> str:
    if row.agreement is None:
        return DASH
    return text if row.agreement.against else REFERENCE


def _nats(value: float) -> str:
    return f"{value:.1e}" if 0 < value < 1e-2 else number(value, 2)


def equal_work_sentences(rows: Sequence[Row]) -> tuple[str, ...]:
    """What is equal where systems are compared, and how their answers are; nothing of one system alone."""
    if all(len(systems_of(group)) < 2 or group[0].simulated for group in groups_of(rows)):
        return ()
    if rows[0].is_layer:
        own = ", which each quantises in its own format" if any(row.spec.is_quantised for row in rows) else ""
        return (
            f"Equal for all systems: bf16 weights{own}, hidden states, routing and cores; each output is held against "
            "float32 arithmetic on the weights as that system stores them.",
        )
    return (_EQUAL, *_compared(rows))


def unproven_sentence(rows: Sequence[Row], marked: str) -> str:
    """For figures, with a space before it: which arms nothing shows to give the others' answers; empty without any.

    `marked` is the mark of their values in brackets, empty where they have none.
    """
    names = dict.fromkeys(row.shown for row in rows if row.unproven and row.role == "arm")
    if not names:
        return ""
    return f" Not shown to give the same answers as the other systems{marked}: {', '.join(names)}."


_EQUAL = "Equal for all systems: token ids, context depth, layers, 16-bit key-value caches and cores."


def _compared(rows: Sequence[Row]) -> tuple[str, ...]:
    references = dict.fromkeys(row.agreement.against for row in rows if row.agreement and row.agreement.against)
    if not references:
        return ("Logits were not compared.",)
    counts = {row.agreement.positions for row in rows if row.agreement and row.agreement.against}
    least, most = min(counts), max(counts)
    span = f"{most}" if least == most else f"{least} to {most}"
    return (
        f"Logits are held against those of {' and '.join(references)} at {span} position{'' if most == 1 else 's'}: "
        "share of positions at which both hold the same token most likely, and mean KL(reference ‖ row) by the natural "
        "logarithm; the worst of all rounds.",
    )
