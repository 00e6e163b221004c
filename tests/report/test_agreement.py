"""Comparisons of systems: answers that were compared are shown, speeds without that are marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ktbench.report.conditions import UNPROVEN
from ktbench.report.latex import latex
from ktbench.report.terminal import row_line
from ktbench.results import Run
from ktbench.results.quantities.writing import MARK
from ktbench.results.rows import rows_of
from ktbench.spec.record import Agreement, Record
from tests.report import peer_stores
from tests.report.peer_stores import KERNELS, NEAR, PEERS
from tests.report.reading import by_arm, headings, row, table
from tests.report.synthetic import DECODE as OURS
from tests.report.synthetic import Store


def store(**changes: object) -> Store:
    return Store(arms=PEERS, rounds=6, run="peers", **changes)  # type: ignore[arg-type]


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
    assert row(agreeing(run, "+v+d", *[None] * 6), "+v+d").agreement is None


def test_a_row_that_nothing_shows_to_give_the_same_answers_is_marked(tmp_path: Path) -> None:
    run = replace(store(), arms=peer_stores.UNPROVEN).write(tmp_path)
    found, mine = table(run), row(run, "llama.cpp")
    assert mine.unproven and [one.label for one in rows_of(run) if one.unproven] == ["llama.cpp"]
    assert {arm for arm, text in by_arm(found, "speed-up (×)").items() if text.endswith(MARK)} == {"llama.cpp"}
    assert f"llama.cpp — {UNPROVEN}" in found.notes
    assert f"x{MARK} [" in row_line(mine)
    assert "(†): llama.cpp." in found.figure_caption
    assert r"$\dagger$" in latex(found) and r"KL(reference $\Vert$ row)" in latex(found)


def test_without_any_agreement_all_are_marked_the_baseline_too(tmp_path: Path) -> None:
    arms = tuple(replace(arm, agreement=None) for arm in PEERS)
    found = table(replace(store(), arms=arms).write(tmp_path))
    assert by_arm(found, "speed-up (×)")["transformers grouped_mm"] == f"1{MARK}"
    assert "Logits were not compared." in found.conditions
    assert "top-1 agreement (%)" not in headings(found)


def test_a_system_alone_needs_no_proof_and_says_nothing_new(tmp_path: Path) -> None:
    found = table(Store(arms=OURS).write(tmp_path))
    assert not {"top-1 agreement (%)", "KL (nats)"} & {*headings(found)}
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


def test_gains_are_over_our_own_arms_alone(tmp_path: Path) -> None:
    """Transformers, too, has none of our features: +v over it is no gain of +v."""
    arms = (PEERS[0], replace(PEERS[3], label="+v"), PEERS[3])
    gains = {one.label: one.gain and one.gain.over for one in rows_of(replace(store(), arms=arms).write(tmp_path))}
    assert (gains["+v"], gains["+v+d"]) == (None, "+v")
