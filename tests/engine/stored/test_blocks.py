"""What any bytes of a block stand for, number by number, and the tensors of other packages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ktbench.engine.stored.blocks import block_numbers, numbers_of
from ktbench.engine.stored.headers import read_weights
from ktbench.engine.stored.matrices import StoredTensor
from ktbench.engine.stored.methods import Method
from ktbench.spec.weights import FORMATS
from tests.engine.stored.written import awq, fp8_squares, int4_groups, nvfp4

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(byte: int) -> float:
    """OCP 8-bit floating point, 5.1: bias 7, no infinity."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return float("nan")
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if byte & 128 else size


def bf16(low: int, high: int) -> float:
    number: float = struct.unpack("<f", bytes([0, 0, low, high]))[0]
    return number


def half(low: int, high: int) -> float:
    number: float = struct.unpack("<e", bytes([low, high]))[0]
    return number


def halves(codes: bytes) -> list[int]:
    return [byte & 15 for byte in codes] + [byte >> 4 for byte in codes]


def fp8_block(block: bytes) -> Iterator[float]:
    scale = struct.unpack("<f", block[:4])[0]
    yield from (scale * e4m3(byte) for byte in block[4:])


def int4_bf16_block(block: bytes) -> Iterator[float]:
    yield from ((code - 8) * bf16(*block[:2]) for code in halves(block[2:]))


def int4_zp_block(block: bytes) -> Iterator[float]:
    yield from ((code - block[2]) * half(*block[:2]) for code in halves(block[3:]))


def nvfp4_block(block: bytes) -> Iterator[float]:
    both = struct.unpack("<f", block[:4])[0]
    for group in range(16):
        scale = e4m3(block[4 + group]) * both
        codes = halves(block[20 + 8 * group : 28 + 8 * group])
        yield from (scale * (-_E2M1[code & 7] if code & 8 else _E2M1[code]) for code in codes)


BLOCKS: dict[str, tuple[int, Callable[[bytes], Iterator[float]]]] = {
    "fp8": (132, fp8_block),
    "int4_bf16": (18, int4_bf16_block),
    "int4_zp": (152, lambda block: chain.from_iterable(int4_zp_block(block[i : i + 19]) for i in range(0, 152, 19))),
    "nvfp4": (148, nvfp4_block),
}


@pytest.mark.parametrize("kind", BLOCKS)
@given(data=st.data())
def test_any_block_stands_for_its_numbers(kind: str, data: st.DataObject) -> None:
    size, read = BLOCKS[kind]
    blocks = data.draw(st.binary(min_size=2 * size, max_size=2 * size))
    if kind == "fp8":  # what is not a number is refused before
        codes = bytes(byte - (byte & 127 == 127) for byte in blocks)
        blocks = blocks[:4] + codes[4:size] + blocks[size : size + 4] + codes[size + 4 :]
    if kind == "nvfp4":  # the product of its two scales is a float32 as well
        both = struct.pack("<f", data.draw(st.floats(2.0**-60, 2.0**60, width=32)))
        blocks = both + blocks[4:size] + both + blocks[size + 4 :]
    seen = block_numbers(np.frombuffer(blocks, np.uint8)[None], kind)
    truth = torch.tensor([*read(blocks[:size]), *read(blocks[size:])], dtype=torch.float64)
    assert seen.shape == (1, 2 * FORMATS[kind].group)
    assert seen.dtype == torch.float32
    torch.testing.assert_close(seen[0], truth.float(), rtol=1e-6, atol=1e-44, equal_nan=True)


KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int32: "I32", torch.int64: "I64"}
KINDS |= {torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}


def numbers(tensors: dict[str, Tensor], method: Method | None = None) -> Tensor:
    """What the tensors of layer `a` stand for."""
    named = {f"a.{last}": tensor.contiguous() for last, tensor in tensors.items()}
    headers = {name: StoredTensor(Path("f"), KINDS[one.dtype], tuple(one.shape)) for name, one in named.items()}
    return numbers_of(read_weights(headers, method or Method()).matrices["a.weight"], named.__getitem__)


def drawn(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("rows", [1, 100, 128, 130, 300])
@pytest.mark.parametrize("columns", [64, 128, 200, 384])
def test_squares_at_the_edge_are_cut(rows: int, columns: int) -> None:
    tensors, truth = fp8_squares(drawn(rows, columns))
    assert torch.equal(numbers(tensors), truth)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (256,), (256, 1), (2, 1)])
def test_scales_of_fp8_are_of_all_of_rows_or_of_squares(shape: tuple[int, ...]) -> None:
    codes, scale = drawn(256, 128).to(torch.float8_e4m3fn), torch.rand(shape) + 0.5
    whole = scale.view(-1, 1).repeat_interleave(256 // max(scale.numel(), 1), dim=0)
    assert torch.equal(numbers({"weight": codes, "weight_scale": scale}), codes.float() * whole)


def test_scales_may_be_powers_of_two() -> None:
    codes, scale = drawn(128, 256).to(torch.float8_e4m3fn), torch.tensor([[0.5, 4.0]])
    seen = numbers({"weight": codes, "weight_scale_inv": scale.to(torch.float8_e8m0fnu)})
    assert torch.equal(seen, codes.float() * scale.repeat_interleave(128, dim=1))


@pytest.mark.parametrize("columns", [64, 256, 1408])
@pytest.mark.parametrize("divides", [False, True])
def test_nvfp4_of_any_width_is_read(columns: int, divides: bool) -> None:
    tensors, truth = nvfp4(drawn(8, columns), divides)
    torch.testing.assert_close(numbers(tensors), truth, rtol=1e-6, atol=0)


def other(module: str) -> Any:
    """Of a package that writes such checkpoints."""
    return pytest.importorskip(module, reason=f"{module} is not installed", exc_type=ImportError)


def test_int4_is_what_compressed_tensors_unpacks() -> None:
    helpers = other("compressed_tensors.compressors.pack_quantized.helpers")
    tensors, _ = int4_groups(drawn(16, 128))
    codes = helpers.unpack_from_int32(tensors["weight_packed"], 4, torch.Size((16, 128)))
    truth = codes.float() * tensors["weight_scale"].float().repeat_interleave(32, dim=1)
    assert torch.equal(numbers(tensors, Method(name="compressed-tensors")), truth)


def test_nvfp4_is_what_compressed_tensors_unpacks() -> None:
    helpers = other("compressed_tensors.compressors.nvfp4.helpers")
    tensors, _ = nvfp4(drawn(16, 256), divides=True)
    codes = helpers.unpack_fp4_from_uint8(tensors["weight_packed"], 16, 256, torch.float32)
    scales = tensors["weight_scale"].float() / tensors["weight_global_scale"]
    truth = codes * scales.repeat_interleave(16, dim=1)
    torch.testing.assert_close(numbers(tensors), truth, rtol=1e-6, atol=0)


def test_awq_is_what_autoawq_unpacks() -> None:
    utils = other("awq.utils.packing_utils")
    tensors, _ = awq(drawn(16, 128))
    truth = utils.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, 32)
    assert torch.equal(numbers(tensors, Method(name="awq", symmetric=False)), truth.T)
