"""Which kernels there are, which of them this machine grants, and what each of them counts."""

import pytest
from _pytest.mark import ParameterSet

from ktbench import _kernels

PRECISIONS = ("bf16", "int8", "int4_g32", "int4_g64", "int4_g128")
QUANTISED = PRECISIONS[1:]
INT4 = PRECISIONS[2:]

COUNTERS = {
    "reference": "reference_calls",
    "avx2": "avx2_calls",
    "avx2_vnni": "avx2_calls",
    "avx512": "avx512_calls",
    "avx512_vnni": "avx512_calls",
    "avx512_bf16": "avx512_calls",
    "amx": "amx_tiles",
    "amx_emulated": "emulated_tiles",
}
INTEGER_ONLY = {"avx2_vnni", "avx512_vnni"}
BF16_ONLY = {"avx512_bf16"}


def group_of(precision: str) -> int:
    """Weights along k that share a scale; the whole row is none of them."""
    return int(precision.removeprefix("int4_g")) if precision in INT4 else 0


def isas_of(precision: str) -> list[str]:
    without = INTEGER_ONLY if precision == "bf16" else BF16_ONLY
    return [isa for isa in COUNTERS if isa not in without]


def granted_isas_of(precision: str) -> list[str]:
    return [isa for isa in isas_of(precision) if not _kernels.grants()[isa]]


def needs(isa: str) -> list[pytest.MarkDecorator]:
    missing = _kernels.grants()[isa]
    return [pytest.mark.skipif(bool(missing), reason=f"{isa}: {missing}")]


def kernels(*precisions: str) -> list[ParameterSet]:
    """(precision, isa) for every kernel of these precisions; what is not granted skips and says why."""
    return [
        pytest.param(precision, isa, marks=needs(isa), id=f"{precision}-{isa}")
        for precision in precisions or PRECISIONS
        for isa in isas_of(precision)
    ]
