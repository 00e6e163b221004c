"""Whether systems that are compared give the same answers: their logits, held against each other."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.row import Row, groups_of
from ktbench.report.text import DASH, number
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Agreement, Record
from ktbench.spec.run_spec import RunSpec

MARK = "†"
REFERENCE = "reference"
UNPROVEN = (
    "not shown to give the same answers as the other systems: its speed is not a comparison of equal work"
    f" ({MARK})"
)  # fmt: skip


def worst(records: Sequence[Record]) -> Agreement | None:
    """The least top-1 agreement and the largest divergence of all rounds, with the positions of the latest of them."""
    found = [record.agreement for record in records if record.agreement is not None]
    if not found:
        return None
    return Agreement(
        against=found[-1].against,
        top1=min(agreement.top1 for agreement in found),
        kl_nats=max(agreement.kl_nats for agreement in found),
        positions=found[-1].positions,
    )


def is_unproven(row: Row, group: Sequence[Row]) -> bool:
    """Whether a row is timed beside other systems, and nothing shows that it gives the answers that they give.

    Of a layer every output is held against float32, which shows it.
    """
    compared = row.timed and not row.is_layer and not row.simulated
    return compared and row.agreement is None and len(systems_of(group)) > 1


def systems_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The systems of rows, in order of appearance."""
    return tuple(dict.fromkeys(row.spec.system for row in rows))


def shows_speeds(rows: Sequence[Row]) -> bool:
    """Whether bars are speeds: those of systems of which none has to be there for the others to be compared."""
    return len(systems_of(rows)) > 1 and not rows[0].is_layer


def unchecked_reason(spec: RunSpec, agreement: Agreement | None) -> str:
    """Why experts' outputs have no error."""
    if spec.machine is not None:
        return "simulated: nothing was computed"
    if spec.system == "ktbench" or not BY_NAME[spec.system].black_box:
        return "the output was not checked"
    instead = "logits were compared instead" if agreement else "nor were logits compared"
    return f"no experts call shows to be checked: {instead}"


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
