"""The formats and instruction sets of the extension, what is expected of each, and what this machine grants."""

from collections.abc import Hashable
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from ktbench import _kernels
from tests.drawing import covering

FORMATS, ISAS, MISSING = _kernels.formats(), _kernels.isas(), _kernels.grants()
COUNTERS = {isa: row["counter"] for isa, row in ISAS.items()}
# Super-blocks are in test_supers.py.
PRECISIONS = tuple(name for name, row in FORMATS.items() if row["scales"] != "super")
SUPERS = tuple(name for name, row in FORMATS.items() if row["scales"] == "super")


@dataclass(frozen=True)
class Expected:
    """By hand. `strip_bytes` of 16 rows: 20, 64 and 96 along k; `gaussian_error` of a layer with Gaussian weights."""

    bits: int
    scales: str
    group: int
    without: frozenset[str]  # instruction sets that have no kernels for it
    strip_bytes: tuple[int, int, int]
    gaussian_error: float


INTEGERS = frozenset({"avx2_vnni", "avx512_vnni"})
BF16 = frozenset({"avx512_bf16", "avx512_vbmi"})
# int8 pads k to 64, int4 to a group, too. Scales and offsets take 128 bytes, the factors of four groups 64; block
# formats have 64 bytes of offsets, and 64 of scales for two blocks. Each of the three matrices of a symmetric 4-bit
# grid in groups of 32 is 0.08 off by itself (Gaussian weights), the output of all three 0.08 * sqrt(3) = 0.14; larger
# groups are coarser.
EXPECTED = {
    "bf16": Expected(16, "none", 0, INTEGERS | {"avx512_vbmi"}, (1024, 2048, 3072), 0.005),
    "int8": Expected(8, "row", 0, BF16, (128 + 1024, 128 + 1024, 128 + 2048), 0.03),
    "int4_g32": Expected(4, "group", 32, BF16, (192 + 512, 192 + 512, 192 + 1024), 0.155),
    "int4_g64": Expected(4, "group", 64, BF16, (192 + 512, 192 + 512, 192 + 1024), 0.17),
    "int4_g128": Expected(4, "group", 128, BF16, (192 + 1024,) * 3, 0.18),
    "q8_0": Expected(8, "block", 32, BF16, (64 + 1088, 64 + 1088, 64 + 2 * 1088), 0.03),
    "q4_0": Expected(4, "block", 32, BF16, (64 + 576, 64 + 576, 64 + 2 * 576), 0.16),
    "iq4_nl": Expected(4, "block", 32, BF16, (64 + 576, 64 + 576, 64 + 2 * 576), 0.15),
    "mxfp4": Expected(4, "power", 32, BF16, (64 + 576, 64 + 576, 64 + 1024 + 64), 0.215),
    "int4_bf16": Expected(4, "block_bf16", 32, BF16, (64 + 576, 64 + 576, 64 + 2 * 576), 0.175),
    "fp8": Expected(8, "tile", 128, INTEGERS, (128 + 2048,) * 3, 0.05),
}

QUANTISED = tuple(name for name in PRECISIONS if FORMATS[name]["scales"] != "none")
INT4 = tuple(name for name, row in FORMATS.items() if row["scales"] == "group")
GGUF = ("q8_0", "q4_0", "iq4_nl", "mxfp4")
BLOCKED = tuple(name for name in PRECISIONS if FORMATS[name]["whole_blocks"])
INTEGER = tuple(name for name in PRECISIONS if FORMATS[name]["isas"]["reference"] == "int8")
BLOCK = 32  # weights along k that share a scale in GGUF's formats


def group_of(precision: str) -> int:
    """Weights along k that share a scale; 0: the whole row, or none."""
    return FORMATS[precision]["group"]


def unit_of(precision: str) -> int:
    """What k is padded to, and where domains may meet: whole tiles, groups or records."""
    return FORMATS[precision]["depth_multiple"]


def sizes_of(precision: str, *sizes: int) -> tuple[int, ...]:
    """The next sizes along k that the precision can have: some formats have whole blocks only."""
    group = group_of(precision)
    return tuple(-(-size // group) * group for size in sizes) if precision in BLOCKED else sizes


def isas_of(precision: str) -> list[str]:
    return list(FORMATS[precision]["isas"])


def quantises_activations(precision: str, isa: str) -> bool:
    """Whether the kernels multiply with int8 activations, and not with those in bf16."""
    return FORMATS[precision]["isas"][isa] == "int8"


def rounds_weights(precision: str, isa: str) -> bool:
    """Whether the kernels round dequantised weights to bf16 before they multiply."""
    return precision != "bf16" and isa != "reference" and not quantises_activations(precision, isa)


def isas_without(precision: str) -> set[str]:
    return set(ISAS) - set(isas_of(precision))


def granted_isas_of(precision: str) -> list[str]:
    return [isa for isa in isas_of(precision) if not MISSING[isa]]


def needs(isa: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(bool(MISSING[isa]), reason=f"{isa}: {MISSING[isa]}")]


def kernels(*precisions: str) -> list[ParameterSet]:
    """(precision, isa) for every kernel of these precisions; what is not granted skips and says why."""
    return [
        pytest.param(precision, isa, marks=needs(isa), id=f"{precision}-{isa}")
        for precision in precisions or PRECISIONS
        for isa in isas_of(precision)
    ]


def few_kernels(*precisions: str, all_of: str = "") -> list[ParameterSet]:
    """`kernels`, of which a few run by default: for what kernels share, not what each of them computes.

    Every precision is among the few, every granted ISA with activations of either kind that it multiplies, and with
    `all_of` all kernels of one ISA.
    """

    def met(precision: str, isa: str) -> tuple[Hashable, ...]:
        return (precision, (isa, quantises_activations(precision, isa)), (precision, isa == all_of))

    return covering(kernels(*precisions), met)
