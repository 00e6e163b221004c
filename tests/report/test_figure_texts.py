"""All texts of figures of every kind: each can be read, and they are the golden ones.

After a wanted change: `python -m tests.report.test_figure_texts` writes them anew; read the difference before keeping
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from matplotlib.figure import Figure

from ktbench.report.documents import documents_of
from ktbench.report.figures.draw import draw, further_figures
from ktbench.report.figures.timeline import timeline_figure
from ktbench.spec.record import Work
from ktbench.spec.sweep import FigureKind, FigureStyle
from tests.drawing import few_of
from tests.report import (
    test_accuracy_figures,
    test_curves,
    test_figure,
    test_paper_figures,
    test_peer_figures,
    test_roles,
    test_timeline,
)
from tests.report.accuracy_stores import AnswerStore
from tests.report.attributed import FACTORIAL, LACKING
from tests.report.drawn import assert_inks_apart, assert_readable, speed_figure, texts_by_place
from tests.report.layers import LayerStore
from tests.report.learned import LearningStore
from tests.report.synthetic import Store

GOLDEN = Path(__file__).parent / "golden" / "figures.json"


def _speeds(store: Store | LayerStore, folder: Path, style: FigureStyle) -> Figure:
    return speed_figure(store.write(folder), style)


def _further(title: str, factor: float, folder: Path, style: FigureStyle) -> Figure:
    """Of cells that do so many times the operations and bytes of others in the same time."""
    run = Store(title="Roofs").write(folder)
    changed = replace(run, records=tuple(replace(one, work=_times(one.work, factor)) for one in run.records))
    return dict(further_figures(documents_of(changed)[0], style))[title]


def _times(work: Work | None, factor: float) -> Work | None:
    if work is None:
        return None
    return replace(work, flops=int(factor * work.flops), weight_bytes=int(factor * work.weight_bytes))


def _first(store: AnswerStore | LearningStore | Store, folder: Path, style: FigureStyle) -> Figure:
    return draw(documents_of(store.write(folder))[0], style)


def _shares(figure: FigureKind, folder: Path, style: FigureStyle) -> Figure:
    return draw(documents_of(Store(arms=(*FACTORIAL, LACKING), figure=figure).write(folder))[1], style)


def _published(name: str, folder: Path, style: FigureStyle) -> Figure:
    return test_paper_figures.drawn(name, test_paper_figures.lines_of(name, 1.07), style)


Draw = Callable[[Path, FigureStyle], Figure]
# Labels of curves may be turned: those of the second table are compared by pixels, all others by their boxes.
LEVEL: dict[str, Draw] = {
    **{f"bars: {name}": partial(_speeds, store) for name, store in test_figure.STORES.items()},
    **{f"roles: {name}": partial(_speeds, store) for name, store in test_roles.STORES.items()},
    **{f"answers: {n}": partial(_first, replace(one, run=n)) for n, one in test_accuracy_figures.STORES.items()},
    **{
        f"timeline: {name}": lambda _, __, step=step: timeline_figure(step, "A model, decode", ["Machine: two cores."])  # type: ignore[misc]
        for name, step in test_timeline.STEPS.items()
    },
}
TURNED: dict[str, Draw] = {
    **{f"curves: {name}": partial(_speeds, store) for name, store in test_curves.STORES.items()},
    **{
        f"roofline: {name}": partial(_further, "Roofline", factor)
        for name, factor in (("plain", 1.0), ("small model", 1e-3))
    },
    "learning": partial(_first, LearningStore()),
    **{f"peers: {name}": partial(_speeds, store) for name, store in test_peer_figures.STORES.items()},
    **{f"published: {name}": partial(_published, name) for name in test_paper_figures.FORMS},
}


# Of which nothing is golden: recorded runs and other tests say what they hold.
OTHERS: dict[str, Draw] = {
    "samples": partial(_further, "Samples over time", 1.0),
    "waterfall": partial(_shares, "waterfall"),
    "interactions": partial(_shares, "interactions"),
}
EVERY = LEVEL | TURNED | OTHERS
KINDS = (
    "bars: plain", "bars: two", "roles: deferral", "roles: depth", "answers: heat", "answers: dots", "answers: formats",
    "answers: frontier", "answers: formats of weights", "curves: kernels", "curves: few tokens", "learning",
    "published: fig12", "published: fig7", "published: fig13", "published: quantisation", *OTHERS,
)  # fmt: skip


@pytest.mark.parametrize("name", [*LEVEL, *TURNED])
def test_texts_can_be_read_and_are_the_golden_ones(tmp_path: Path, name: str) -> None:
    drawn = EVERY[name](tmp_path, FigureStyle())
    assert texts_by_place(drawn) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    (assert_readable if name in LEVEL else assert_inks_apart)(drawn)


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("name", few_of([name for name in EVERY if "timeline" not in name], KINDS))
def test_figures_of_any_width_are_laid_out_without_overlap_and_cut(tmp_path: Path, name: str, width: float) -> None:
    drawn = EVERY[name](tmp_path, FigureStyle(width=width))
    assert drawn.get_figwidth() == width
    (assert_readable if name in LEVEL else assert_inks_apart)(drawn)


def regenerate() -> None:
    found = {}
    for name, drawing in (LEVEL | TURNED).items():
        with TemporaryDirectory() as folder:
            found[name] = texts_by_place(drawing(Path(folder), FigureStyle()))
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    regenerate()
