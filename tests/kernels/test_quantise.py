"""What packing makes of weights, against quantisers in numpy: float64 rows, one scale per row or per group."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.drawing import examples
from tests.kernels.layers import KINDS, Expert, Floats, expert_of, read, to_bf16, widen
from tests.kernels.tables import FORMATS, INT4, QUANTISED, group_of, sizes_of

STEPS = np.arange(-8, 8)
GROUP_SCALES = np.concatenate([np.arange(-15, 0), np.arange(1, 16)])
UNITS_PER_ROW = np.float32(7.7) * np.float32(15)  # the largest magnitude: 7.7 of a group whose scale is 15


def lifted(w: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows brought into the range where their reciprocals are finite, and by how much."""
    lift = np.where(np.abs(w).max(1, keepdims=True) < 2.0**-64, np.float32(2.0**64), np.float32(1))
    return w.astype(np.float32) * lift, lift


def int8_rows(w: Floats) -> NDArray[np.float32]:
    """Symmetric, scale = largest / 127, in the float32 arithmetic of the packed format."""
    x, lift = lifted(w)
    largest = np.abs(x).max(1, keepdims=True)
    inverse = np.float32(127) / np.where(largest == 0, 1, largest)
    return (x * inverse).round() * (largest / np.float32(127) / lift)


def int4_row_scale(w: Floats) -> Floats:
    """[rows]: a subnormal one is rounded, as the stored float is."""
    x, lift = lifted(w)
    int8_scale = np.abs(x).max(1) / np.float32(127) / lift[:, 0]
    return (int8_scale / (UNITS_PER_ROW / np.float32(127))).astype(np.float64)


def groups_of(w: Floats, group: int) -> Floats:
    """[rows, k] as [rows, groups, group], padded with zeros."""
    rows, k = w.shape
    padded = np.zeros((rows, -(-k // group) * group))
    padded[:, :k] = w
    return padded.reshape(rows, -1, group)


def plain_int4(w: Floats, group: int) -> Floats:
    """Largest of each group / 7 as its float scale, which no format of eight bits per scale has."""
    grouped = groups_of(w, group)
    scale = np.abs(grouped).max(2, keepdims=True) / 7
    safe = np.where(scale > 0, scale, 1)
    return ((grouped / safe).round().clip(-8, 7) * safe).reshape(len(w), -1)[:, : w.shape[1]]


def best_of_the_grid(w: Floats, group: int) -> Floats:
    """Row scale x group scale x integer with the least squared error of each group, by trying all group scales."""
    grouped = groups_of(w, group)
    row_scale = np.abs(w).max(1)[:, None, None] / float(UNITS_PER_ROW)
    best, least = np.zeros_like(grouped), (grouped**2).sum(2)
    for s in GROUP_SCALES:
        tried = (grouped / (row_scale * s)).round().clip(-8, 7) * row_scale * s
        error = ((grouped - tried) ** 2).sum(2)
        best = np.where((error < least)[:, :, None], tried, best)
        least = np.minimum(error, least)
    return best.reshape(len(w), -1)[:, : w.shape[1]]


def lies_on_the_grid(stored: Floats, row_scale: Floats, group: int) -> bool:
    """Whether one group scale of -15 ... 15 explains all weights of each group as row scale x it x -8 ... 7."""
    safe = np.where(row_scale > 0, row_scale, 1)
    units = groups_of(stored / safe[:, None], group)
    whole = units.round()
    if (np.abs(units - whole) > 1e-4 * np.maximum(1, np.abs(whole))).any():
        return False
    candidates = (STEPS[:, None] * GROUP_SCALES).T  # [scales, steps]
    fits = [np.isin(whole, steps).all(2) for steps in candidates]
    return bool(np.any(fits, axis=0).all())


SMALLEST = 2.0**-149


def packed_and_read(matrices: Expert, precision: str) -> Expert:
    intermediate, hidden = matrices[0].shape
    packed = _kernels.PackedExperts(1, hidden, intermediate, precision)
    packed.write_expert(0, *(to_bf16(m) for m in matrices))
    return read(packed, 0)


def random_expert(kind: str, rng: np.random.Generator, hidden: int, intermediate: int) -> Expert:
    gate, up, down = (widen(matrix) for matrix in expert_of(kind, rng, hidden, intermediate))
    return gate, up, down


@given(
    kind=st.sampled_from(KINDS),
    hidden=st.integers(1, 140),
    intermediate=st.integers(1, 140),
    seed=st.integers(0, 2**16),
)
def test_int8_is_exactly_the_nearest_step_of_its_row(kind, hidden, intermediate, seed):
    written = random_expert(kind, np.random.default_rng(seed), hidden, intermediate)
    for was, wrote in zip(packed_and_read(written, "int8"), written, strict=True):
        assert (was == int8_rows(wrote)).all()
        step = np.abs(wrote).max(1, keepdims=True) / 127
        assert (np.abs(was - wrote) <= step * 0.5001 + 127 * SMALLEST).all(), "a subnormal scale is itself rounded"


@pytest.mark.parametrize("precision", INT4)
@examples(15)
@given(
    kind=st.sampled_from(KINDS),
    hidden=st.integers(1, 300),
    intermediate=st.integers(1, 140),
    seed=st.integers(0, 2**16),
)
def test_int4_lies_on_its_grid(precision, kind, hidden, intermediate, seed):
    written = random_expert(kind, np.random.default_rng(seed), hidden, intermediate)
    for was, wrote in zip(packed_and_read(written, precision), written, strict=True):
        assert lies_on_the_grid(was, int4_row_scale(wrote), group_of(precision))
        assert (was[(wrote == 0).all(1)] == 0).all()


@pytest.mark.parametrize("precision", INT4)
@pytest.mark.parametrize("kind", ["gaussian", "subnormal", "huge", "outlier", "one sign"])
def test_int4_scales_are_nearly_the_best_of_the_grid(precision, kind, rng):
    written = random_expert(kind, rng, 512, 64)
    for was, wrote in zip(packed_and_read(written, precision), written, strict=True):
        best = best_of_the_grid(wrote, group_of(precision))
        assert squared(was, wrote) <= 1.02 * squared(best, wrote)


@pytest.mark.parametrize("precision", INT4)
def test_the_search_is_worth_it(precision, rng):
    """Of Gaussian weights, although the scales that it may choose from are coarser."""
    written = random_expert("gaussian", rng, 1024, 128)
    for was, wrote in zip(packed_and_read(written, precision), written, strict=True):
        assert squared(was, wrote) <= 0.95 * squared(plain_int4(wrote, group_of(precision)), wrote)


def squared(a: Floats, b: Floats) -> float:
    scale = float(np.abs(b).max())
    return float((((a - b) / scale) ** 2).sum())


OF_ROWS = [name for name in QUANTISED if FORMATS[name]["scales"] not in ("block", "tile")]


@pytest.mark.parametrize("precision", OF_ROWS)
def test_a_row_is_quantised_by_itself(precision, rng):
    """Magnitudes of rows and groups that lie far apart do not spoil each other's precision."""
    columns = 256
    rows = rng.standard_normal((32, columns)) * 10.0 ** rng.integers(-30, 30, (32, 1))
    gate = widen(to_bf16(rows))
    down = np.zeros((columns, 32))
    was = packed_and_read((gate, gate, down), precision)[0]
    error = np.linalg.norm(was - gate, axis=1) / np.linalg.norm(gate, axis=1)
    assert (error < (0.02 if precision == "int8" else 0.15)).all()


@pytest.mark.parametrize("precision", QUANTISED)
def test_threads_of_a_team_quantise_alike(precision, pool, rng):
    sizes = sizes_of(precision, 130, 90)
    gate, up, down = (to_bf16(m) for m in random_expert("gaussian", rng, *sizes))
    by_one, by_two = (_kernels.PackedExperts(1, *sizes, precision) for _ in range(2))
    by_one.write_expert(0, gate, up, down)
    by_two.write_expert(0, gate, up, down, pool)
    for one, two in zip(by_one.read_expert(0), by_two.read_expert(0), strict=True):
        assert (one == two).all()
