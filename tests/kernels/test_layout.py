"""The packed layout as kernels/core/layout.h describes it, read from a saved file by numpy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ktbench import _kernels
from tests.kernels.layers import Bits, Floats, case, widen
from tests.kernels.tables import BLOCK, BLOCKED, FORMATS, PRECISIONS, group_of, sizes_of, unit_of

Bytes = NDArray[np.uint8]
HEAD_BYTES, ROWS = 4096, 16


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def rows_of(lines: NDArray[np.int8] | Bits) -> Floats:
    """[strips, lines, 16 rows, neighbours along k] as a matrix."""
    strips, _, rows, _ = lines.shape
    return lines.transpose(0, 2, 1, 3).reshape(strips * rows, -1).astype(np.float64)


def int4_of(strips: Bytes, depth: int, group: int) -> Floats:
    """Group scale x nibble, which is what the lines of a strip hold after the row's scales."""
    pieces, at = [], 128
    for first in range(0, depth // group, 4):
        here = min(4, depth // group - first)
        scales = strips[:, at : at + 64].view(np.int8).reshape(-1, 4, ROWS)
        assert not scales[:, here:].any()
        at += 64
        packed = strips[:, at : at + here * group * 8].reshape(len(strips), here, group // 8, ROWS, 4)
        at += here * group * 8
        nibbles = np.concatenate([(packed << 4).view(np.int8) >> 4, packed.view(np.int8) >> 4], axis=4)
        pieces.append(nibbles.astype(np.int16) * scales[:, :here, None, :, None])
    assert at == strips.shape[1]
    along_k = np.concatenate(pieces, axis=1)
    return rows_of(along_k.reshape(len(strips), -1, ROWS, 8))


# What nibbles stand for: int4, kvalues_iq4nl of ggml-common.h, and e2m1 of the OCP Microscaling Formats.
NIBBLES = {
    "q4_0": [*range(8), *range(-8, 0)],
    "int4_bf16": [*range(8), *range(-8, 0)],
    "iq4_nl": [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    "mxfp4": [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6],
}


def scales_in(line: Bytes, precision: str) -> Floats:
    """Those of the blocks of a record, [strips, blocks, 16 rows]."""
    if precision == "mxfp4":
        return 2.0 ** (line.reshape(len(line), 4, ROWS).astype(np.int64) - 127)
    halves = line.copy().view(np.uint16).reshape(len(line), 2, ROWS)
    return widen(halves) if precision == "int4_bf16" else halves.view(np.float16).astype(np.float64)


def blocks_of(strips: Bytes, precision: str, depth: int) -> tuple[Floats, Floats]:
    """GGUF's weights and their offsets: a strip is a line of these, then records of two or four blocks of every row."""
    block_lines = BLOCK * FORMATS[precision]["bits"] // 32
    pieces, at, left = [], 64, depth // BLOCK
    while left:
        scales = scales_in(strips[:, at : at + 64], precision)
        here = min(scales.shape[1], left)
        at, end = at + 64, at + 64 + here * block_lines * 64
        lines = strips[:, at:end].copy().reshape(len(strips), here, block_lines, ROWS, 4)
        if precision in NIBBLES:
            numbers = np.array(NIBBLES[precision])[np.concatenate([lines & 15, lines >> 4], axis=4)]
        else:
            numbers = lines.view(np.int8).astype(np.float64)
        pieces.append((numbers * scales[:, :here, None, :, None]).reshape(len(strips), -1, ROWS, numbers.shape[-1]))
        at, left = end, left - here
    assert at == strips.shape[1]
    return rows_of(np.concatenate(pieces, axis=1)), strips[:, :64].copy().view(np.float32).reshape(-1).astype(
        np.float64
    )


def tiles_of(strips: Bytes, depth: int) -> Floats:
    """e4m3: a float for each row, then records of 16 floats and as many groups of 128 along k.

    The 16 bytes of four rows in a line are k and k + 1 of each, then k + 2 and k + 3.
    """
    rows, pieces, at = strips[:, :64].copy().view(np.float32), [], 64
    for first in range(0, depth // 128, 16):
        here = min(16, depth // 128 - first)
        scales = strips[:, at : at + 64].copy().view(np.float32)[:, :here]
        codes = strips[:, at + 64 : at + 64 + here * 2048].copy().reshape(len(strips), here, 32, 4, 2, 4, 2)
        numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()
        numbers = numbers.transpose(0, 1, 2, 3, 5, 4, 6).reshape(len(strips), here, 32, ROWS, 4)
        pieces.append((numbers * scales[:, :, None, None, None]).reshape(len(strips), -1, ROWS, 4))
        at += 64 + here * 2048
    assert at == strips.shape[1]
    weights = rows_of(np.concatenate(pieces, axis=1)) * rows.reshape(-1, 1)
    return weights.astype(np.float32).astype(np.float64)


def matrix_of(strips: Bytes, precision: str, depth: int) -> Floats:
    """Strips [any, bytes] as the padded matrix that they stand for."""
    if precision == "bf16":
        lines = strips.view(np.uint16).reshape(len(strips), depth // 2, ROWS, 2)
        return widen(rows_of(lines).astype(np.uint16))
    if precision == "fp8":
        return tiles_of(strips, depth)
    if precision in BLOCKED:
        weights, offset = blocks_of(strips, precision, depth)
        assert (offset == (-128 * weights.sum(1)).astype(np.float32)).all()
        return weights
    scale = strips[:, :64].copy().view(np.float32).reshape(-1, 1)
    offset = strips[:, 64:128].copy().view(np.int32).reshape(-1)
    if precision == "int8":
        numbers = rows_of(strips[:, 128:].view(np.int8).reshape(len(strips), depth // 4, ROWS, 4))
    else:
        numbers = int4_of(strips, depth, group_of(precision))
    assert (offset == -128 * numbers.sum(1)).all()
    return (numbers * scale).astype(np.float32).astype(np.float64)


def padded(matrix: Floats, rows: int, depth: int) -> Floats:
    whole = np.zeros((rows, depth))
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return whole


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("hidden", "intermediate"), [(64, 32), (70, 33), (1, 1), (320, 200), (129, 257)])
def test_every_byte_is_where_the_layout_says(precision, hidden, intermediate, tmp_path):
    of = case(precision, (2, hidden, intermediate), 1, 1)
    of.packed.save(str(tmp_path / "experts"))
    hidden, intermediate = sizes_of(precision, hidden, intermediate)
    unit = unit_of(precision)
    depth, inner = round_up(hidden, unit), round_up(intermediate, unit)
    gate_rows, down_rows = round_up(intermediate, 32), round_up(hidden, 32)
    data = np.fromfile(tmp_path / "experts", np.uint8)[HEAD_BYTES:].reshape(2, -1)
    assert data.size == of.packed.nbytes
    down_bytes = down_rows // ROWS * strip_bytes(precision, inner)
    for expert, (gate, up, down) in zip(data, of.experts, strict=True):
        pairs = expert[:-down_bytes].reshape(gate_rows // ROWS, 2, -1)
        assert (matrix_of(pairs[:, 0].copy(), precision, depth) == padded(gate, gate_rows, depth)).all()
        assert (matrix_of(pairs[:, 1].copy(), precision, depth) == padded(up, gate_rows, depth)).all()
        strips = expert[-down_bytes:].reshape(down_rows // ROWS, -1)
        assert (matrix_of(strips.copy(), precision, inner) == padded(down, down_rows, inner)).all()


def strip_bytes(precision: str, depth: int) -> int:
    """The head with scales and offsets, numbers, and a line of scales for each record of two or four groups."""
    row = FORMATS[precision]
    records = {"none": (0, 1), "row": (128, 1), "group": (128, 4), "block": (64, 2), "power": (64, 4)}
    records |= {"block_bf16": (64, 2), "tile": (64, 16)}
    head, groups_per_record = records[row["scales"]]
    groups = depth // row["group"] if row["group"] else 0
    return head + depth * ROWS * row["bits"] // 8 + 64 * -(-groups // groups_per_record)


def test_a_file_of_one_layer_is_its_packed_size_and_a_page(tmp_path):
    packed = _kernels.PackedExperts(2, 64, 32, "int8")
    packed.save(str(tmp_path / "experts"))
    assert (tmp_path / "experts").stat().st_size == packed.nbytes + HEAD_BYTES
