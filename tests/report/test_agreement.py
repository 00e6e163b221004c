"""Comparisons of systems: answers that were compared are shown, speeds without that are marked."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.report.conditions import MARK, UNPROVEN
from ktbench.report.data import csv_text, json_text
from ktbench.report.latex import latex
from ktbench.report.speed_table import table_of
from ktbench.report.table import Table
from ktbench.report.terminal import row_line
from ktbench.results import Run
from ktbench.results.row import Row
from ktbench.results.rows import rows_of, worst
from ktbench.spec.record import Agreement, Record
from tests.report import peer_stores
from tests.report.peer_stores import DECODE, KERNELS, NEAR, PEERS
from tests.report.synthetic import DECODE as OURS
from tests.report.synthetic import Store

THREADS = "threads on all 2 cores, threads of peers as in their remarks"
TOP1, KL = "top-1 agreement (%)", "KL (nats)"


def store(**changes: object) -> Store:
    return Store(arms=PEERS, rounds=6, run="peers", **changes)  # type: ignore[arg-type]


def table(run: Run) -> Table:
    return table_of(run, rows_of(run))


def column(found: Table, heading: str) -> dict[str, str]:
    at = [column.heading for column in found.columns].index(heading)
    return {cells[0]: cells[at] for cells in found.cells}


def row(run: Run, label: str) -> Row:
    return next(row for row in rows_of(run) if row.label == label)


def agreeing(run: Run, label: str, *found: Agreement | None) -> Run:
    """The run with these agreements in the rounds of an arm."""

    def changed(record: Record) -> Record:
        mine = record.label == label and record.round < len(found)
        return replace(record, agreement=found[record.round]) if mine else record

    return replace(run, records=tuple(map(changed, run.records)))


def test_the_worst_of_all_rounds_is_shown(tmp_path: Path) -> None:
    run = store().write(tmp_path)
    mixed = agreeing(run, "+v+d", replace(NEAR, top1=0.5, positions=4), replace(NEAR, kl_nats=0.7), None)
    assert row(mixed, "+v+d").agreement == Agreement(against=NEAR.against, top1=0.5, kl_nats=0.7, positions=32)
    assert worst([record for record in run.records if record.label == "none"]) is None


def test_columns_name_the_reference_and_how_near_the_others_are(tmp_path: Path) -> None:
    found = table(store().write(tmp_path))
    assert column(found, TOP1) == {
        "transformers grouped_mm": "reference",
        "transformers eager": "96.9",
        "llama.cpp": "87.5",
        "+v+d": "96.9",
        "+v+d+l": "96.9",
    }
    assert column(found, KL)["llama.cpp"] == "0.041" and column(found, KL)["+v+d"] == "2.1e-03"
    (said,) = (sentence for sentence in found.conditions if sentence.startswith("Logits "))
    assert "compared with those of transformers grouped_mm at 32 positions" in said
    assert "KL(reference ‖ row) by the natural logarithm" in said
    assert "Equal for all systems: token ids, context depth, layers, 16-bit key-value caches and cores." in (
        found.conditions
    )
    assert not any(MARK in cell for cells in found.cells for cell in cells)


def test_a_row_that_nothing_shows_to_give_the_same_answers_is_marked(tmp_path: Path) -> None:
    run = replace(store(), arms=peer_stores.UNPROVEN).write(tmp_path)
    found, mine = table(run), row(run, "llama.cpp")
    assert mine.unproven and [one.label for one in rows_of(run) if one.unproven] == ["llama.cpp"]
    assert {arm for arm, text in column(found, "speed-up (×)").items() if text.endswith(MARK)} == {"llama.cpp"}
    assert f"llama.cpp — {UNPROVEN}" in found.notes
    assert f"x{MARK} [" in row_line(mine)
    assert "(†): llama.cpp." in found.figure_caption
    assert r"$\dagger$" in latex(found) and r"KL(reference $\Vert$ row)" in latex(found)


def test_without_any_agreement_all_are_marked_the_baseline_too(tmp_path: Path) -> None:
    arms = tuple(replace(arm, agreement=None) for arm in PEERS)
    found = table(replace(store(), arms=arms).write(tmp_path))
    assert column(found, "speed-up (×)")["transformers grouped_mm"] == f"1{MARK}"
    assert "Logits were not compared." in found.conditions
    assert TOP1 not in [column.heading for column in found.columns]


def test_a_system_alone_needs_no_proof_and_says_nothing_new(tmp_path: Path) -> None:
    found = table(Store(arms=OURS).write(tmp_path))
    assert not {TOP1, KL} & {column.heading for column in found.columns}
    assert not any("Equal for all systems" in sentence for sentence in found.conditions)
    peer_alone = Store(arms=PEERS[2:3], control=False, run="b").write(tmp_path)
    assert not rows_of(peer_alone)[0].unproven


def test_a_layer_is_held_against_float32_which_is_proof_enough(tmp_path: Path) -> None:
    run = KERNELS.write(tmp_path)
    assert not any(one.unproven for one in rows_of(run))
    assert any("each output is compared with float32" in sentence for sentence in table(run).conditions)


def test_logits_stand_in_for_outputs_that_nobody_can_see(tmp_path: Path) -> None:
    run = store().write(tmp_path)
    assert row(run, "llama.cpp").missing["error"].endswith("logits were compared instead")
    alone = agreeing(run, "llama.cpp", *[None] * 6)
    assert row(alone, "llama.cpp").missing["error"].endswith("logits were not compared")
    unchecked = replace(run, records=tuple(replace(record, error=None) for record in run.records))
    assert row(unchecked, "+v+d").missing["error"] == "the output was not checked"
    assert row(run, "llama.cpp").missing["roof"] == "the system does not report its work per step"


def test_formats_that_are_not_what_a_precision_is_called_are_named_once(tmp_path: Path) -> None:
    run = replace(DECODE, precisions=("bf16", "q8_0", "int8", "int4_g32"), prompts=(32, 64)).write(tmp_path)
    formats = [note for note in table(run).notes if " — runs " in note]
    assert formats == [
        "llama.cpp — runs int8 as Q8_0, 8.5 bits a weight",
        "llama.cpp — runs int4_g32 as Q4_0, 4.5 bits a weight",
    ]
    assert [note for note in table(KERNELS.write(tmp_path)).notes if " — runs " in note] == [
        "kt-kernel — runs int4_g32 as int4"
    ]


def test_gains_are_over_our_own_arms_alone(tmp_path: Path) -> None:
    """Transformers, too, has none of our features: +v over it is no gain of +v."""
    arms = (PEERS[0], replace(PEERS[3], label="+v"), PEERS[3])
    gains = {one.label: one.gain and one.gain.over for one in rows_of(replace(store(), arms=arms).write(tmp_path))}
    assert (gains["+v"], gains["+v+d"]) == (None, "+v")


@pytest.mark.parametrize(
    ("precisions", "said"),
    [
        (("bf16",), f"Systems llama.cpp and ktbench, precision bf16, {THREADS}, linear layers in bf16."),
        (
            ("bf16", "q4_0"),
            f"Systems llama.cpp and ktbench, {THREADS}, linear layers in the precision of the experts.",
        ),
    ],
)
def test_the_caption_names_systems_and_their_precisions(tmp_path: Path, precisions: tuple[str, ...], said: str) -> None:
    assert said in table(replace(DECODE, precisions=precisions).write(tmp_path)).conditions  # type: ignore[arg-type]


def test_csv_and_json_carry_systems_and_their_agreement(tmp_path: Path) -> None:
    run = replace(store(), arms=peer_stores.UNPROVEN).write(tmp_path)
    rows = rows_of(run)
    lines = {line["label"]: line for line in csv.DictReader(io.StringIO(csv_text(run, rows)))}
    content = {line["label"]: line for line in json.loads(json_text(run, rows, table(run)))["rows"]}
    eager, lost = lines["transformers eager"], lines["llama.cpp"]
    assert (eager["system"], eager["agreement_against"]) == ("transformers", "transformers grouped_mm")
    assert (float(eager["top1_agreement"]), float(eager["kl_nats"])) == (NEAR.top1, NEAR.kl_nats)
    assert (eager["agreement_positions"], eager["unproven"]) == ("32", "False")
    assert (lost["top1_agreement"], lost["kl_nats"], lost["unproven"]) == ("", "", "True")
    assert content["transformers eager"]["agreement"]["kl_nats"] == NEAR.kl_nats
    assert (content["llama.cpp"]["agreement"], content["llama.cpp"]["unproven"]) == (None, True)
    assert content["llama.cpp"]["system"] == "llama.cpp"
