"""What formats take, and which of them none beats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results.accuracy import accuracy_rows
from ktbench.results.formats import plane_of_answers, plane_of_rows
from ktbench.results.row import Row, experts_bytes, stored_bits
from ktbench.results.rows import rows_of
from ktbench.spec.engine import EngineSpec
from tests.report.accuracy_stores import FORMATS

SMALL = {"hidden_size": 64, "moe_intermediate_size": 64}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, ...]:
    return rows_of(FORMATS.write(tmp_path_factory.mktemp("run")))


def test_a_format_takes_its_numbers_and_scales(rows: tuple[Row, ...]) -> None:
    """A row of 2048 or 768 weights: numbers, a scale of each group, and what its kernels keep for the row."""
    bits = {row.spec.precision: stored_bits(row) for row in rows}
    per_row = 2 / 3 / 2048 + 1 / 3 / 768  # rows for each weight
    assert bits["bf16"] == 16
    assert bits["int8"] == pytest.approx(8 + 8 * 8 * per_row)
    assert bits["q4_0"] == pytest.approx(4.5 + 8 * 4 * per_row)
    weights = 4 * 128 * 3 * 2048 * 768
    assert all(experts_bytes(row) == pytest.approx(weights * bits[row.spec.precision] / 8) for row in rows)


def test_rows_that_end_within_a_block_are_no_more_bits_of_a_weight(rows: tuple[Row, ...]) -> None:
    """Rows of 64 weights fill a quarter of a block of Q2_K (84 bytes for 256): it takes more than INT8 then."""
    model = replace(rows[1].spec.model, config=rows[1].spec.model.config | SMALL)
    small = {
        name: replace(rows[1], spec=replace(rows[1].spec, model=model, precision=name)) for name in ("int8", "q2_k")
    }
    assert experts_bytes(small["q2_k"]) > experts_bytes(small["int8"])
    assert stored_bits(small["q2_k"]) == pytest.approx((256 * 2 + 20 * 8 + 4 * 8) / 256)
    assert stored_bits(small["int8"]) == pytest.approx(8 + 8 * 8 / 64)


def test_base_runs_bf16_whatever_its_spec_says(rows: tuple[Row, ...]) -> None:
    base = replace(rows[1], spec=replace(rows[1].spec, engine=EngineSpec()))
    assert (rows[1].spec.precision, stored_bits(base)) == ("int8", 16)


def test_what_none_beats_is_told_apart_in_each_phase(tmp_path: Path) -> None:
    """Speeds go with bits, losses with formats: int8 is faster than q8_0 and diverges further."""
    plane = plane_of_answers(accuracy_rows(FORMATS.write(tmp_path)))
    assert plane.quantity == "kl"
    assert [row.spec.precision for row in plane.references] == ["bf16", "bf16"]
    for phase in ("prefill", "decode"):
        points = {one.row.spec.precision: one for one in plane.points if one.row.spec.workload.phase == phase}
        for name, one in points.items():
            others = [other for key, other in points.items() if key != name]
            beaten = any(o.speed.mid >= one.speed.mid and o.height.mid <= one.height.mid for o in others)
            assert one.is_best is not beaten
        assert points["int8"].is_best and points["q8_0"].is_best


def test_without_answers_bits_count_and_not_the_errors_of_checks(rows: tuple[Row, ...]) -> None:
    plane = plane_of_rows(rows)
    assert (plane.quantity, plane.references) == ("bits", ())
    assert [point.height.mid for point in plane.points] == [stored_bits(row) for row in rows]
