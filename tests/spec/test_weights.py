"""Bytes of packed weights: counted by hand, and as the extension allocates them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ktbench.spec.shape import moe_shape
from ktbench.spec.weights import FORMATS, Precision, expert_bytes
from tests.tiny import CONFIG

EXPERT = 3 * 64 * 32
ROWS = 32 + 32 + 64  # of gate, up and down, each with a scale and an offset of 4 bytes


@pytest.mark.parametrize(
    ("precision", "held"),
    [
        ("bf16", 2 * EXPERT),
        ("int8", EXPERT + 8 * ROWS),
        ("int4_g32", EXPERT // 2 + EXPERT // 32 + 8 * ROWS),
        ("int4_g64", EXPERT // 2 + (32 + 32 + 64) + 8 * ROWS),
    ],
)
def test_weights_take_what_their_precision_does(precision: Any, held: int) -> None:
    assert expert_bytes(moe_shape(CONFIG), precision) == held


def test_every_precision_has_a_row() -> None:
    assert tuple(FORMATS) == get_args(Precision)


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize(("hidden", "ffn"), [(2048, 768), (2048, 1408), (7168, 2048)])
def test_the_extension_allocates_as_many(precision: Any, hidden: int, ffn: int) -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the extension is not built", exc_type=ImportError)
    shape = moe_shape(CONFIG | {"hidden_size": hidden, "moe_intermediate_size": ffn})
    held = kernels.PackedExperts(1, hidden, ffn, precision).nbytes
    assert expert_bytes(shape, precision) == pytest.approx(held, rel=0.01)
