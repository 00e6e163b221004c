"""Weight quantisers in numpy, to hold the packed weights against: rows of float64, one scale per row or per group."""

import numpy as np
from numpy.typing import NDArray

from tests.kernels.layers import Floats

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
