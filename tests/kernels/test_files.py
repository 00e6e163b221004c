"""Packed experts in a file: mapped back they compute the same bits, and what is no such file is refused by name."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import GLUS, Case, case, forward, random_biases
from tests.kernels.tables import PRECISIONS, granted_isas_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=PRECISIONS)
def of(request) -> Case:
    return case(request.param, (3, 100, 72), 5, 2)


@pytest.fixture
def file(of, tmp_path) -> Path:
    of.packed.save(str(tmp_path / "experts"))
    return tmp_path / "experts"


def test_mapped_experts_are_the_same(of, file, pool):
    mapped = _kernels.PackedExperts.map(str(file))
    for name in ("experts", "hidden", "intermediate", "precision", "domains", "nbytes"):
        assert getattr(mapped, name) == getattr(of.packed, name), name
    for isa in granted_isas_of(of.packed.precision):
        expected = forward(_kernels.MoE(of.packed, pool), of.batch, isa=isa)
        assert (forward(_kernels.MoE(mapped, pool), of.batch, isa=isa) == expected).all()


@pytest.mark.parametrize("glu", GLUS, ids=str)
@pytest.mark.parametrize("with_biases", [False, True], ids=["no-biases", "biases"])
def test_activation_and_biases_are_in_the_file(glu, with_biases, tmp_path, pool, rng):
    of = case("int8", (3, 100, 72), 5, 2)
    packed = of.layer.packed("int8", glu=glu, biases=random_biases(rng, of.layer) if with_biases else ())
    packed.save(str(tmp_path / "experts"))
    mapped = _kernels.PackedExperts.map(str(tmp_path / "experts"))
    for name in ("activation", "alpha", "limit", "offset", "biases", "nbytes"):
        assert getattr(mapped, name) == getattr(packed, name), name
    if with_biases:
        assert all(
            (was == wrote).all() for was, wrote in zip(mapped.read_biases(2), packed.read_biases(2), strict=True)
        )
    out, expected = (forward(_kernels.MoE(experts, pool), of.batch, isa="reference") for experts in (mapped, packed))
    assert (out == expected).all()


def test_a_mapped_file_saves_as_itself(file, tmp_path):
    _kernels.PackedExperts.map(str(file)).save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_mapped_experts_cannot_be_written(of, file):
    mapped = _kernels.PackedExperts.map(str(file))
    before = file.read_bytes()
    with pytest.raises(RuntimeError, match="packed experts in a file cannot be written"):
        mapped.write_expert(0, of.layer.gate_eih[0], of.layer.up_eih[0], of.layer.down_ehi[0])
    assert file.read_bytes() == before


@pytest.fixture
def int8_file(tmp_path) -> Path:
    case("int8", (3, 100, 72), 5, 2).packed.save(str(tmp_path / "experts"))
    return tmp_path / "experts"


def test_several_processes_map_it_at_once(int8_file):
    program = f"""
import sys
from ktbench._kernels import PackedExperts
packed = PackedExperts.map({str(int8_file)!r})
print(sum(float(m.sum()) for m in packed.read_expert(2)), flush=True)
sys.stdin.read()
"""
    mapped = _kernels.PackedExperts.map(str(int8_file))
    expected = sum(float(matrix.sum()) for matrix in mapped.read_expert(2))
    others = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=-1, stdout=-1, text=True) for _ in range(2)
    ]
    assert [float(other.stdout.readline()) for other in others] == [expected] * 2  # both hold it now
    for other in others:
        other.communicate()
        assert other.returncode == 0


def test_who_has_it_mapped_keeps_it_when_it_is_replaced_or_removed(int8_file):
    mapped = _kernels.PackedExperts.map(str(int8_file))
    before = mapped.read_expert(1)
    case("int4_g32", (1, 40, 40), 1, 1).packed.save(str(int8_file))
    assert _kernels.PackedExperts.map(str(int8_file)).precision == "int4_g32"
    int8_file.unlink()
    assert all((was == wrote).all() for was, wrote in zip(mapped.read_expert(1), before, strict=True))


LARGE = 2**31 - 1
NONE, SIZE, EITHER = "holds no packed experts", "has [0-9]+ bytes", "(holds no packed experts|has [0-9]+ bytes)"
# Bytes of the file: all from or up to a place, or a head with other numbers at a place.
TRUNCATED = [(lambda whole, kept=kept: whole[:kept], EITHER) for kept in (1, 100, 4095, 4096, -1)]
FOREIGN = [
    (lambda _, content=content: content, NONE) for content in (b"\0" * 9000, b"GGUF" * 3000, np.arange(5000).tobytes())
]
SIZES = [  # experts, hidden, intermediate, precision, group
    *[(0, 64, 64, 1, 0), (-3, 64, 64, 1, 0), (3, 0, 64, 1, 0), (3, 64, -1, 1, 0)],
    *[(3, 64, 64, 3, 0), (3, 64, 64, -1, 0), (3, 64, 64, 1, 32), (3, 64, 64, 2, 0), (3, 64, 64, 2, 7)],
    *[(LARGE, LARGE, LARGE, 1, 0), (LARGE, 100, 72, 1, 0), (3, LARGE, 72, 0, 0), (3, 100, LARGE, 2, 128)],
]
ACTIVATIONS = [  # biases, activation, alpha, limit, offset
    *[(2, 0, 1, np.inf, 0), (-1, 0, 1, np.inf, 0), (0, 2, 1, np.inf, 0), (0, -1, 1, np.inf, 0)],
    *[(0, 0, 0, np.inf, 0), (0, 0, np.nan, 7, 0), (0, 1, 1.702, 7, 0), (0, 0, 1, -7, 0), (0, 0, 1, 7, np.nan)],
    (1, 0, 1, np.inf, 0),  # whose file would be longer
]


def with_bytes(at: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + content + whole[at + len(content) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *TRUNCATED,
        (lambda whole: whole + b"\0", SIZE),
        *FOREIGN,
        *[(with_bytes(16, struct.pack("<5i", *sizes)), EITHER) for sizes in SIZES],
        *[(with_bytes(36, struct.pack("<2i", *down)), EITHER) for down in ((3, 0), (2, 32), (-1, 0), (0, 0))],
        *[(with_bytes(44, struct.pack("<2h3d", *numbers)), EITHER) for numbers in ACTIVATIONS],
        *[(with_bytes(15, bytes([v])), f"holds packed experts of file version {v}, not 2") for v in (0, 1, 255)],
    ],
)
def test_what_is_no_such_file_is_refused_by_name(int8_file, change, message):
    whole = int8_file.read_bytes()
    assert whole[15] == 2
    int8_file.write_bytes(change(whole))
    with pytest.raises(RuntimeError, match=f"{int8_file} {message}"):
        _kernels.PackedExperts.map(str(int8_file))


def test_what_the_system_refuses_is_an_os_error_with_the_name(tmp_path):
    packed = case("int8", (3, 100, 72), 5, 2).packed
    (tmp_path / "empty").touch()
    for refused in (tmp_path / "missing", tmp_path / "empty", tmp_path):
        with pytest.raises(OSError, match=str(refused)):
            _kernels.PackedExperts.map(str(refused))
    for refused in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(OSError, match=str(refused)):
            packed.save(str(refused))


def test_experts_over_domains_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="split over domains cannot be saved"):
        case("int8", (1, 64, 128), 1, 1, domains=2).packed.save(str(tmp_path / "experts"))
    assert not (tmp_path / "experts").exists()
