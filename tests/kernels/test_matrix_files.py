"""A packed matrix in a file: mapped back it computes the same bits, and what is no such file is refused by name."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import random_bits
from tests.kernels.tables import FORMATS, PRECISIONS, granted_isas_of, sizes_of


def packed(rng: np.random.Generator, precision: str, rows: int = 101, columns: int = 72) -> _kernels.PackedMatrix:
    (columns,) = sizes_of(precision, columns)
    matrix = _kernels.PackedMatrix(rows, columns, precision)
    if FORMATS[precision]["scales"] == "super":  # takes blocks alone; of small bytes, which no half precision's NaN has
        width = columns // FORMATS[precision]["group"] * FORMATS[precision]["block_bytes"]
        matrix.write_blocks(rng.integers(0, 60, (rows, width), np.uint8))
    else:
        matrix.write(random_bits(rng, rows, columns))
    return matrix


def forward(matrix: _kernels.PackedMatrix, x: np.ndarray, team: _kernels.Team, isa: str) -> np.ndarray:
    out = np.empty((len(x), matrix.rows), np.uint16)
    _kernels.Linear(matrix, team).forward(x, out, isa=isa)
    return out


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_mapped_matrix_is_the_same(precision, tmp_path, pool, rng):
    matrix, file = packed(rng, precision), tmp_path / "matrix"
    matrix.save(str(file))
    mapped, x = _kernels.PackedMatrix.map(str(file)), random_bits(rng, 5, matrix.columns)
    for name in ("rows", "columns", "precision", "nbytes"):
        assert getattr(mapped, name) == getattr(matrix, name), name
    for isa in granted_isas_of(precision):
        assert (forward(mapped, x, pool, isa) == forward(matrix, x, pool, isa)).all()
    mapped.save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


@pytest.fixture
def int8_file(tmp_path, rng) -> Path:
    packed(rng, "int8").save(str(tmp_path / "matrix"))
    return tmp_path / "matrix"


def test_a_mapped_matrix_cannot_be_written(int8_file, rng):
    mapped, before = _kernels.PackedMatrix.map(str(int8_file)), int8_file.read_bytes()
    with pytest.raises(RuntimeError, match="a packed matrix in a file cannot be written"):
        mapped.write(random_bits(rng, mapped.rows, mapped.columns))
    assert int8_file.read_bytes() == before


def test_who_has_it_mapped_keeps_it_when_it_is_replaced_or_removed(int8_file, rng):
    mapped = _kernels.PackedMatrix.map(str(int8_file))
    before = mapped.read()
    packed(rng, "bf16").save(str(int8_file))
    assert _kernels.PackedMatrix.map(str(int8_file)).precision == "bf16"
    int8_file.unlink()
    assert (mapped.read() == before).all()


LARGE = 2**31 - 1
NONE, SIZE, EITHER = "holds no packed matrix", "has [0-9]+ bytes", "(holds no packed matrix|has [0-9]+ bytes)"
SIZES = [  # rows, columns, format, group
    *[(0, 64, 1, 0), (-3, 64, 1, 0), (3, 0, 1, 0), (64, 72, -1, 0), (64, 72, 99, 0), (64, 72, 1, 32), (64, 72, 2, 7)],
    *[(LARGE, LARGE, 1, 0), (LARGE, 72, 1, 0), (101, LARGE, 0, 0), (2**30, 2**30, 1, 0)],
]


def with_bytes(at: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + content + whole[at + len(content) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *[(lambda whole, kept=kept: whole[:kept], EITHER) for kept in (1, 100, 4095, 4096, -1)],
        (lambda whole: whole + b"\0", SIZE),
        *[(lambda _, content=content: content, NONE) for content in (b"\0" * 9000, b"GGUF" * 3000)],
        *[(with_bytes(16, struct.pack("<4i", *sizes)), EITHER) for sizes in SIZES],
        *[(with_bytes(15, bytes([v])), f"holds a packed matrix of file version {v}, not 1") for v in (0, 2, 255)],
    ],
)
def test_what_is_no_such_file_is_refused_by_name(int8_file, change, message):
    int8_file.write_bytes(change(int8_file.read_bytes()))
    with pytest.raises(RuntimeError, match=f"{int8_file} {message}"):
        _kernels.PackedMatrix.map(str(int8_file))


def test_experts_are_no_matrix(tmp_path):
    experts = _kernels.PackedExperts(1, 64, 64, "int8")
    experts.save(str(tmp_path / "experts"))
    with pytest.raises(RuntimeError, match=NONE):
        _kernels.PackedMatrix.map(str(tmp_path / "experts"))


def test_what_the_system_refuses_is_an_os_error_with_the_name(tmp_path, rng):
    (tmp_path / "empty").touch()
    for refused in (tmp_path / "missing", tmp_path / "empty", tmp_path):
        with pytest.raises(OSError, match=str(refused)):
            _kernels.PackedMatrix.map(str(refused))
    for refused in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(OSError, match=str(refused)):
            packed(rng, "int8").save(str(refused))
