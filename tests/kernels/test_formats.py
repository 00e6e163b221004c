"""The exported tables: what is expected of every row, and the Python table that restates the formats."""

import pytest

from ktbench.spec.features import FEATURES
from ktbench.spec.weights import FORMATS as PYTHON
from tests.kernels.tables import COUNTERS, EXPECTED, FORMATS, ISAS, MISSING, PRECISIONS, SUPERS, isas_without


def test_the_formats_are_those_expected():
    assert list(PRECISIONS) == list(EXPECTED)
    assert list(FORMATS) == list(PYTHON) == [*PRECISIONS, *SUPERS]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_format_is_what_is_expected_of_it(precision):
    row, expected = FORMATS[precision], EXPECTED[precision]
    assert (row["bits"], row["scales"], row["group"]) == (expected.bits, expected.scales, expected.group)
    assert isas_without(precision) == expected.without


@pytest.mark.parametrize("precision", FORMATS)
def test_the_python_table_restates_the_export(precision):
    row, python = FORMATS[precision], PYTHON[precision]
    for field in ("bits", "group", "scale_bytes", "row_bytes", "block_bytes", "whole_blocks", "from_numbers"):
        assert getattr(python, field) == row[field], field
    assert {isa: python.multiplied_as(isa.partition("_")[0]) for isa in row["isas"]} == row["isas"]


def test_instruction_sets_extend_known_ones_and_count_what_proves_their_feature():
    proofs = {feature.name: feature.counter for feature in FEATURES}
    for name, row in ISAS.items():
        assert row["parent"] is None or row["parent"] in ISAS
        assert row["feature"] not in proofs or row["counter"] == proofs[row["feature"]], name
        assert set(row["peaks"]) <= {"bf16", "int8"} and (row["feature"] or not row["peaks"])
    assert list(ISAS) == list(MISSING) == list(COUNTERS)


def test_an_instruction_set_is_granted_only_with_its_parent():
    for name, row in ISAS.items():
        assert MISSING[name] or not row["parent"] or not MISSING[row["parent"]]
