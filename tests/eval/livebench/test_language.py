"""Language tasks: right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from tests.eval.livebench.asked import asked, score

FIXED = "We study graphs, and more.\nThey are finite."
WORDS = "Bass, Trout, Pike, Carp, ant, drill, island, opal"
PLOT = "Anna leaves home. She meets a dragon in the hills. Both of them fly to the sea"


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        (FIXED, 1),
        (f"Here it is:\n{FIXED}\nDone.", 1),
        ("<solution>We study graphs, and more. They are finite.</solution>", 1),
        (f"--- {FIXED} ---", 1),
        (f"{FIXED} --- We studdy graphs ---", 0),
        (f"{FIXED} <solution>We study graphs</solution>", 0),
        (FIXED.replace("study", "studdy"), 0),
        (FIXED.replace(",", ""), 0),
        ("", 0),
    ],
)
def test_typos(answer: str, worth: float) -> None:
    assert score(asked("typos", FIXED), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("**bass, trout, pike, carp, ant, drill, island, opal**", 1),
        ("**ant, island, drill, opal, carp, trout, pike, bass**", 1),
        ("**bass, trout,\npike, carp, ant, drill, island, opal**", 1),
        ("**guess** then **bass, trout, pike, carp, opal, drill, island, eel**", 0.5),
        ("**bass, trout, pike, carp** and **ant, drill, island, opal**", 0.5),
        ("**ant, trout, pike, carp, bass, drill, island, opal**", 0),
        ("bass, trout, pike, carp, ant, drill, island, opal", 0),
        ("<solution>bass, trout, pike, carp, ant, drill, island, opal</solution>", 0),
        ("", 0),
    ],
)
def test_connections_asked_in_bold(answer: str, worth: float) -> None:
    assert score(asked("connections", WORDS), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>bass, trout, pike, carp, ant, drill, island, opal</solution>", 1),
        (r"\boxed{\text{bass, trout, pike, carp, ant, drill, island, opal}}", 1),
        ("<solution>ant, trout, pike, carp, bass, drill, island, opal</solution>", 0),
        ("<solution>x, bass, trout, pike, carp, ant, drill, island, opal</solution>", 0),
        ("<solution>bass, trout, pike, carp</solution>", 0.5),
        ("**bass, trout, pike, carp, ant, drill, island, opal**", 0),
        ("", 0),
    ],
)
def test_connections_asked_in_a_solution(answer: str, worth: float) -> None:
    assert score(asked("connections", WORDS, released="2024-11-25"), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        (f"<PLOT_SUMMARY> {PLOT}.", 1),
        (f"I begin. <PLOT_SUMMARY>\n{PLOT}.\n</PLOT_SUMMARY>", 1),
        ("<PLOT_SUMMARY>Anna left home. She met a dragon in hills. They both flew to the sea.", 1),
        ("<PLOT_SUMMARY>She meets a dragon in the hills. Both of them fly to the sea. Anna leaves home.", 1 / 3),
        ("<PLOT_SUMMARY>Anna leaves home. Both of them fly to the sea. She meets a dragon in the hills.", 1 / 3),
        ("<PLOT_SUMMARY>", 0),
        ("", 0),
    ],
)
def test_plot_unscrambling_counts_edits(answer: str, worth: float) -> None:
    assert score(asked("plot_unscrambling", PLOT), answer) == pytest.approx(worth)
