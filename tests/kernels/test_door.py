"""The binding refuses what is wrong, in a sentence, before anything runs."""

from collections.abc import Callable

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import case
from tests.kernels.tables import COUNTERS, PRECISIONS, isas_without


@pytest.fixture
def moe(pool):
    return _kernels.MoE(case("bf16", (4, 64, 32), 3, 2).packed, pool)


@pytest.fixture
def arguments():
    batch = case("bf16", (4, 64, 32), 3, 2).batch
    out = np.empty_like(batch.x_th)
    return {"hidden": batch.x_th, "ids": batch.ids_tk.copy(), "gates": batch.gates_tk, "out": out}


@pytest.fixture(params=["forward", "submit", "prepare", "host_call"])
def call(request, moe) -> Callable[..., object]:
    """The four faces of one operation have one door."""
    return getattr(moe, request.param)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("name", "spoil", "refusal"),
    [
        ("hidden", lambda a: a.astype(np.int16), (TypeError, "hidden must be uint16, not int16")),
        ("hidden", lambda a: a.astype(np.float32), (TypeError, "hidden must be uint16, not float32")),
        ("ids", lambda a: a.astype(np.int32), (TypeError, "ids must be int64, not int32")),
        ("gates", lambda a: a.astype(np.float64), (TypeError, "gates must be float32, not float64")),
        ("hidden", lambda a: a[:, :63], (ValueError, r"hidden must have shape \[any, 64\], not \[3, 63\]")),
        ("hidden", lambda a: a[0], (ValueError, r"hidden must have shape \[any, 64\], not \[64\]")),
        ("ids", lambda a: a[:2], (ValueError, r"ids must have shape \[3, any\], not \[2, 2\]")),
        ("ids", lambda a: a[:, :0], (ValueError, "at least one expert per token")),
        ("gates", lambda a: a[:, :1], (ValueError, r"gates must have shape \[3, 2\], not \[3, 1\]")),
        ("out", lambda a: a[:1], (ValueError, r"out must have shape \[3, 64\], not \[1, 64\]")),
        ("hidden", lambda a: np.repeat(a, 2, 0)[::2], (ValueError, "hidden must be contiguous")),
        ("ids", np.asfortranarray, (ValueError, "ids must be contiguous")),
        ("out", lambda a: np.repeat(a, 2, 0)[::2], (ValueError, "out must be contiguous")),
        ("out", read_only, (ValueError, "out must be writeable")),
    ],
)
def test_a_wrong_array_is_named(call, arguments, name, spoil, refusal):
    error, message = refusal
    with pytest.raises(error, match=message):
        call(**(arguments | {name: spoil(arguments[name])}), isa="reference")


@pytest.mark.parametrize("bad", [-2, 4, 2**40])
def test_a_wrong_expert_id_is_named(moe, arguments, bad):
    arguments["ids"][1, 0] = bad
    with pytest.raises(IndexError, match=rf"expert id {bad} of token 1 is not in 0\.\.3"):
        moe.forward(**arguments, isa="reference")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no kernels chosen"),
        ({"isa": "reference", "amx": True}, "isa=reference excludes avx2, avx512 and amx"),
        ({"isa": "reference", "avx512": True}, "isa=reference excludes"),
        ({"avx2": True, "amx": True}, "avx2 excludes avx512 and amx"),
        ({"isa": "avx1024"}, f"unknown isa 'avx1024': one of {', '.join(COUNTERS)}"),
        ({"isa": "reference", "amx_min_tokens": -1}, "amx_min_tokens=-1 must not be negative"),
    ],
)
def test_wrong_options_are_refused(call, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        call(**arguments, **options)


def test_options_are_named_not_placed(moe, arguments):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        moe.forward(*arguments.values(), True)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        moe.forward(**arguments, avx1024=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pair_without_kernels_is_refused(precision, pool, arguments):
    moe = _kernels.MoE(case(precision, (4, 64, 32), 3, 2).packed, pool)
    for isa in isas_without(precision):
        error, reason = (RuntimeError, "not granted") if _kernels.grants()[isa] else (ValueError, "has no kernels for")
        with pytest.raises(error, match=f"isa {isa} .*{reason}"):
            moe.forward(**arguments, isa=isa)


REFUSED = [isa for isa, missing in _kernels.grants().items() if missing]


@pytest.mark.skipif(not REFUSED, reason="this machine grants every ISA")
def test_an_isa_that_is_not_granted_is_refused_with_the_reason(moe, arguments):
    for isa in REFUSED:
        reason = "(the CPU has no|the operating system|the kernel)"
        with pytest.raises(RuntimeError, match=f"isa {isa} is not granted: {reason}"):
            moe.forward(**arguments, isa=isa)


def test_nothing_is_counted_when_refused(moe, arguments):
    arguments["ids"][0, 0] = 99
    with pytest.raises(IndexError):
        moe.forward(**arguments, isa="reference", dynamic=True)
    assert not any(moe.counters().values())


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("cpus", [[], [100000], [-1]])
def test_a_pool_on_wrong_cpus_is_refused(cpus, own):
    with pytest.raises(ValueError, match="cpu|at least one thread"):
        _kernels.ThreadPool(cpus, 100, own=own)


@pytest.mark.parametrize(("spin_us", "reason"), [(-1, "must not be negative"), (2**62, "must be at most")])
def test_a_spin_that_no_clock_counts_is_refused(cpus, spin_us, reason):
    with pytest.raises(ValueError, match=f"spin_us={spin_us} {reason}"):
        _kernels.ThreadPool(cpus[:1], spin_us)


def test_the_build_is_identified():
    assert len(_kernels.build_id()) == 64 and int(_kernels.build_id(), 16)


def test_every_isa_is_granted_or_says_why_in_one_line_and_plain_code_always_is():
    assert all("\n" not in reason for reason in _kernels.grants().values())
    assert _kernels.grants()["reference"] == ""
