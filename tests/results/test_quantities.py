"""The table of quantities as a whole: each has a name and a place of its own, and a value and a text for every row."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Protocol

import pytest

from ktbench.results import Run
from ktbench.results.quantities.columns import columns_of, plain_of
from ktbench.results.quantities.table import QUANTITIES
from ktbench.results.rows import rows_of
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.learned import LearningStore
from tests.report.peer_stores import PEERS
from tests.report.role_stores import DEFERRAL
from tests.report.synthetic import Store

LAYER = LayerStore(
    parts=(LayerPart(name="", title="", arms=(LayerArm(label="base", share=0.3),), tokens=(1,)),), rounds=6
)


class Stored(Protocol):
    def write(self, folder: Path) -> Run:
        """Write a run into a folder and read it back."""


def test_names_and_places_are_of_one_quantity_each() -> None:
    names = [one.name for one in QUANTITIES]
    assert len(set(names)) == len(names)
    places = [one.place for one in QUANTITIES if one.place]
    assert not [(one, other) for one, other in permutations(places, 2) if other[: len(one)] == one]


@pytest.mark.parametrize("store", [Store(), Store(arms=PEERS, rounds=6), DEFERRAL, LAYER, LearningStore()])
def test_every_row_has_a_value_or_none_and_a_text_of_each(tmp_path: Path, store: Stored) -> None:
    run = store.write(tmp_path)
    for row in rows_of(run):
        columns, plain = columns_of(run, row), plain_of(row)
        for one in (one for one in QUANTITIES if one.has(row)):
            assert isinstance(one.text(row), str)
            assert one.csv_keys or (one.name in columns) == one.csv
            assert not one.place or one.place[0] in plain
        assert {one.name for one in QUANTITIES if not one.has(row)}.isdisjoint(columns)
