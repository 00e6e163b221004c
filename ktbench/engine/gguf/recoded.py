"""Types of GGUF whose weights become the blocks of a format that kernels compute on, number for number.

The IQ types draw groups of 4 or 8 weights from lattices, whose points the `gguf` package lists. A point's numbers have
few magnitudes: each weight becomes a code of its magnitude and sign, in the planes of Q3_K (IQ1, IQ2) or of IQ4_XS
(IQ3), beside d and integer scales. That takes 3.3 or 4.3 bits a weight where the file has 1.6 to 3.4.

Letters: N super-blocks of 256 weights, G groups with a scale each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.gguf.header import RECODED, TensorType

Bytes = NDArray[Any]  # uint8; NumPy types what comes of shifts as wider
_NEGATIVE = {"q3_k": 4, "iq4_xs": 8}  # the bit of a code that is set where the weight is negative
_SCALE_OFFSET = 32  # of scales in 6 bits


def recode(rows: Bytes, kind: TensorType) -> Bytes:
    """Rows of blocks of the type's precision, uint8 [..., bytes of a row], of rows as they lie in the file."""
    one = RECODED[kind]
    blocks = np.ascontiguousarray(rows).reshape(-1, one.block_bytes)
    return _RECODERS[kind](blocks).reshape(*rows.shape[:-1], -1)


def _q5_0(blocks: Bytes) -> Bytes:
    """Q8_0 of a half d and 5-bit codes raised by 16, whose fifth bits lie together."""
    d, fifth, pairs = np.hsplit(blocks, [2, 6])
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=1) | np.unpackbits(fifth, axis=1, bitorder="little") << 4
    return np.concatenate([d, codes - np.uint8(16)], axis=1)


def _iq2_xxs(blocks: Bytes) -> Bytes:
    d, words = blocks[:, :2], blocks[:, 2:].copy().view(np.uint32).reshape(len(blocks), 8, 2)
    points = words[..., 0].copy().view(np.uint8).reshape(len(blocks), 32)
    scales, signs = _scale_and_signs(words[..., 1])
    return _in_q3_k(d, np.repeat(scales, 2, axis=1), _codes("IQ2_XXS", points, signs))


def _iq2_xs(blocks: Bytes) -> Bytes:
    d, words, scales = blocks[:, :2], blocks[:, 2:66].copy().view(np.uint16), blocks[:, 66:]
    codes = _codes("IQ2_XS", words & 511, _even_signs()[words >> 9])
    return _in_q3_k(d, _odd(_nibbles(scales)), codes)


def _iq2_s(blocks: Bytes) -> Bytes:
    d, low, signs, high, scales = np.hsplit(blocks, [2, 34, 66, 74])
    points = low | (_pieces(high, 2).astype(np.uint16) << 8)
    return _in_q3_k(d, _odd(_nibbles(scales)), _codes("IQ2_S", points, signs))


def _iq3_xxs(blocks: Bytes) -> Bytes:
    d, points = blocks[:, :2], blocks[:, 2:66]
    scales, signs = _scale_and_signs(blocks[:, 66:].copy().view(np.uint32))
    return _in_iq4_xs(d, scales, _codes("IQ3_XXS", points, signs))


def _iq3_s(blocks: Bytes) -> Bytes:
    d, low, high, signs, scales = np.hsplit(blocks, [2, 66, 74, 106])
    points = low | (np.unpackbits(high, axis=1, bitorder="little").astype(np.uint16) << 8)
    return _in_iq4_xs(d, _odd(_nibbles(scales)), _codes("IQ3_S", points, signs))


def _iq1_s(blocks: Bytes) -> Bytes:
    """The sign is that of the eighth by which the numbers of a group of 32 are moved."""
    d, low, words = blocks[:, :2], blocks[:, 2:34], blocks[:, 34:].copy().view(np.uint16)
    points = low | ((words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7) << 8).reshape(low.shape)
    moved = np.repeat(np.where(words >> 15, 255, 0).astype(np.uint8), 4, axis=1)
    return _in_q3_k(d, np.repeat(_odd(words >> 12 & 7), 2, axis=1), _codes("IQ1_S", points, moved))


def _iq1_m(blocks: Bytes) -> Bytes:
    """The half d lies in the upper bits of four words of scales."""
    low, high, words = blocks[:, :32], blocks[:, 32:48], blocks[:, 48:].copy().view(np.uint16)
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    scales = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), 16)
    nibbles = _nibbles(high)
    points = low | ((nibbles & 7).astype(np.uint16) << 8)
    moved = np.where(nibbles & 8, 255, 0).astype(np.uint8)
    return _in_q3_k(d.view(np.uint8), _odd(scales), _codes("IQ1_M", points, moved))


_RECODERS: Mapping[TensorType, Callable[[Bytes], Bytes]] = {
    "Q5_0": _q5_0,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}


def _scale_and_signs(words: NDArray[np.uint32]) -> tuple[NDArray[Any], Bytes]:
    """Odd scales [N, 8] and bytes of signs [N, 32] of a word for 32 weights: a scale above four times 7 bits."""
    sevens = words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return _odd(words >> 28), _even_signs()[sevens].reshape(len(words), -1)


@cache
def _even_signs() -> Bytes:
    """[128] bytes whose number of set bits is even, by their lower 7."""
    low = np.arange(128, dtype=np.uint8)
    signs: Bytes = low | (np.unpackbits(low[:, None], axis=1).sum(axis=1) % 2 << 7).astype(np.uint8)
    return signs


def _nibbles(pairs: Bytes) -> Bytes:
    return _pieces(pairs, 4)


def _pieces(packed: Bytes, bits: int) -> Bytes:
    """[N, 8 / bits · M] of bytes [N, M], lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & ((1 << bits) - 1)).reshape(len(packed), -1)


def _odd(scales: NDArray[Any]) -> NDArray[Any]:
    return 2 * scales.astype(np.uint8) + 1


@cache
def _points(name: TensorType) -> Bytes:
    """[points, 4 or 8] of a lattice: places of their numbers among its magnitudes."""
    from gguf import quants  # an extra

    lattice = getattr(quants, name)
    lattice.init_grid()
    magnitudes = np.array(lattice.grid_map, np.float32)
    points: Bytes = np.searchsorted(magnitudes, lattice.grid.reshape(lattice.grid_shape)).astype(np.uint8)
    return points


def _codes(name: TensorType, points: NDArray[Any], signs: Bytes) -> Bytes:
    """[N, 256] of the points of a lattice, and a byte of signs for every 8 weights."""
    negative = np.unpackbits(signs, axis=1, bitorder="little") * np.uint8(_NEGATIVE[RECODED[name].blocks_of])
    codes: Bytes = _points(name)[points].reshape(len(points), 256) | negative
    return codes


def _in_q3_k(d: Bytes, scales: NDArray[Any], codes: Bytes) -> Bytes:
    """[N, 110] of scales [N, 16] and codes of 3 bits (block_q3_K of ggml-common.h)."""
    low = _pack_bits(codes.reshape(-1, 2, 4, 32) & 3, axis=2, bits=2).reshape(len(codes), 64)
    high = _pack_bits((codes >> 2).reshape(-1, 8, 32), axis=1, bits=1)
    raised = scales.astype(np.uint8) + np.uint8(_SCALE_OFFSET)
    fours = _pack_bits((raised & 15).reshape(-1, 2, 8), axis=1, bits=4)
    twos = _pack_bits((raised >> 4).reshape(-1, 4, 4), axis=1, bits=2)
    return np.concatenate([high, low, fours, twos, d], axis=1)


def _in_iq4_xs(d: Bytes, scales: NDArray[Any], codes: Bytes) -> Bytes:
    """[N, 136] of scales [N, 8] and codes of 4 bits (block_iq4_xs of ggml-common.h)."""
    raised = scales.astype(np.uint8) + np.uint8(_SCALE_OFFSET)
    twos = _pack_bits((raised >> 4).reshape(-1, 2, 4), axis=2, bits=2)
    fours = _pack_bits((raised & 15).reshape(-1, 4, 2), axis=2, bits=4)
    pairs = _pack_bits(codes.reshape(-1, 8, 2, 16), axis=2, bits=4).reshape(len(codes), 128)
    return np.concatenate([d, twos, fours, pairs], axis=1)


def _pack_bits(pieces: Bytes, *, axis: int, bits: int) -> Bytes:
    """Bytes of pieces of so many bits along an axis, the first in the lowest."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[: pieces.shape[axis]]
    shape = [1] * pieces.ndim
    shape[axis] = len(shifts)
    joined: Bytes = np.bitwise_or.reduce(pieces << shifts.reshape(shape), axis=axis)
    return joined
