"""Roofs are plausible and refuse what they cannot measure."""

import pytest

from ktbench import _kernels
from tests.kernels.tables import needs

PEAKS = [pytest.param(isa, marks=needs(isa)) for isa in ("avx2", "avx512", "amx")]


def test_reading_takes_a_plausible_time(pool):
    roof = _kernels.ReadRoof(pool, 64 << 20)
    assert all(1e8 < roof.sample(0.002) < 1e13 for _ in range(6))
    roof.read_once()
    assert 1e8 < _kernels.ReadRoof(pool, 1 << 16).sample(0.0) < 1e14, "a buffer of a page or two for each thread"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 61.0])
def test_a_time_that_is_none_is_refused(pool, seconds):
    with pytest.raises(ValueError, match="0 to 60 seconds"):
        _kernels.ReadRoof(pool, 1 << 20).sample(seconds)
    with pytest.raises(ValueError, match="0 to 60 seconds"):
        _kernels.peak_flops(pool, "avx2", seconds)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("isa", PEAKS)
def test_peaks_are_plausible(pool, isa, dtype):
    assert 1e9 < _kernels.peak_flops(pool, isa, 0.01, dtype=dtype) < 1e15


def test_a_peak_without_a_loop_is_refused(pool):
    with pytest.raises(ValueError, match="no peak for isa 'reference'"):
        _kernels.peak_flops(pool, "reference", 0.01)
    with pytest.raises(ValueError, match="no peak for dtype 'fp3'"):
        _kernels.peak_flops(pool, "avx2", 0.01, dtype="fp3")


def test_ping_pong(pool, cpus):
    if len(cpus) < 2:
        pytest.skip("one cpu")
    assert _kernels.ping_pong_ns(pool) > 1
    assert _kernels.ping_pong_ns(_kernels.ThreadPool(cpus[:1] * 2, 100)) > 1, "on one cpu it ends as well"
