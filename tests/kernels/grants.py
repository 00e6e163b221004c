"""Which kernels there are, which of them this machine grants, and what each of them counts."""

import pytest
from _pytest.mark import ParameterSet

from ktbench import _kernels

INT4 = ("int4_g32", "int4_g64", "int4_g128")
GGUF = ("q8_0", "q4_0")
TILED = ("bf16", "int8", *INT4)  # AMX has kernels for these
PRECISIONS = (*TILED, *GGUF)
QUANTISED = PRECISIONS[1:]
BLOCK = 32  # weights along k that share a scale in GGUF's formats

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
TILES = {"amx", "amx_emulated"}


def group_of(precision: str) -> int:
    """Weights along k that share a scale; the whole row is none of them."""
    if precision in GGUF:
        return BLOCK
    return int(precision.removeprefix("int4_g")) if precision in INT4 else 0


def unit_of(precision: str) -> int:
    """What k is padded to, and where domains may meet: whole tiles, groups or records."""
    return 32 if precision == "bf16" else max(64, group_of(precision))


def sizes_of(precision: str, *sizes: int) -> tuple[int, ...]:
    """The next sizes along k that the precision can have: GGUF's formats know whole blocks only."""
    return tuple(-(-size // BLOCK) * BLOCK for size in sizes) if precision in GGUF else sizes


def isas_without(precision: str) -> set[str]:
    if precision in GGUF:
        return BF16_ONLY | TILES
    return INTEGER_ONLY if precision == "bf16" else BF16_ONLY


def isas_of(precision: str) -> list[str]:
    return [isa for isa in COUNTERS if isa not in isas_without(precision)]


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
