"""Which loops of the kernels are the fastest: fitted to times, measured once, kept, set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.host import crossovers
from ktbench.host.crossovers import (
    Crossover,
    cache_file,
    crossover_lines,
    fit_loops,
    fit_tiles,
    loop_at,
    read_crossovers,
    use_crossovers,
)

TOKENS = (1, 2, 4, 8, 16, 32)
SHIPPED = (1, 25)


def times(fastest: dict[int, str], margin: float = 1.3) -> dict[int, dict[str, float]]:
    """Every loop takes `margin` times as long as the fastest."""
    loops = ("stream", "fetching", "block", "amx")
    return {n: {loop: n * (1.0 if loop == fastest[n] else margin) for loop in loops} for n in TOKENS}


@given(st.sampled_from(TOKENS), st.sampled_from(TOKENS))
def test_loops_that_change_at_two_thresholds_are_found(fetch: int, block: int) -> None:
    seconds = times({n: loop_at(n, fetch, block) for n in TOKENS})
    found = fit_loops(seconds, SHIPPED)
    assert [loop_at(n, *found) for n in TOKENS] == [loop_at(n, fetch, block) for n in TOKENS]


@given(st.sampled_from(TOKENS))
def test_tiles_begin_where_they_are_faster(first: int) -> None:
    seconds = times({n: "amx" if n >= first else "fetching" for n in TOKENS})
    assert fit_tiles(seconds, (1, 99), 5) in (first, 5)
    assert (fit_tiles(seconds, (1, 99), 5) >= 5) == (first >= 5)


def test_one_that_is_slower_at_one_number_does_not_move_the_thresholds() -> None:
    fastest = {n: "fetching" if n < 16 else "block" for n in TOKENS}
    disturbed = times(fastest)
    disturbed[4]["fetching"] *= 1.5
    assert fit_loops(disturbed, (1, 16)) == (1, 16)


def test_what_ships_stays_unless_another_gains_enough() -> None:
    fastest = dict.fromkeys(TOKENS, "block")
    assert fit_loops(times(fastest, margin=1.01), SHIPPED) == SHIPPED
    assert fit_loops(times(fastest, margin=1.1), SHIPPED)[1] == 1


class Kernels:
    """The part of the extension that is read and set, for one instruction set and two precisions."""

    def __init__(self) -> None:
        self.now = {("avx512", "bf16"): (1, 25), ("avx512", "int8"): (1, 25), ("amx", "int8"): (1, 5)}

    def crossovers(self) -> dict[tuple[str, str], tuple[int, int]]:
        return dict(self.now)

    def set_crossover(self, isa: str, precision: str, fetch: int, block: int) -> None:
        self.now[isa, precision] = fetch, block

    def isas(self) -> dict[str, dict[str, str]]:
        return {isa: {"feature": isa} for isa in ("avx512", "amx")}

    def isa_of(self, feature: str, _precision: str) -> str:
        return feature

    def grants(self) -> dict[str, str]:
        return {"avx512": "", "amx": ""}

    def build_id(self) -> str:
        return "0" * 64


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Fake kernels, an empty cache, and timing that finds blocks to be the fastest from 8 tokens on, tiles from 16."""
    monkeypatch.setenv("KTBENCH_CACHE", str(tmp_path / "cache"))
    timed: list[str] = []

    class Layer:
        def __init__(self, _kernels: Any, precision: str, _cpus: Any) -> None:
            timed.append(precision)

        def time(self, loops: dict[str, str], _budget_s: float) -> Any:
            fastest = {n: "amx" if "amx" in loops and n >= 16 else loop_at(n, 1, 8) for n in TOKENS}
            return times(fastest)

    monkeypatch.setattr(crossovers, "_Layer", Layer)
    fake = Kernels()
    fake.timed = timed  # type: ignore[attr-defined]
    return fake


def test_they_are_measured_once_and_then_read_from_the_cache(kernels: Any) -> None:
    assert all(one.measured is None for one in read_crossovers(kernels, [0]))
    first = use_crossovers(kernels, ["int8"], [0])
    assert {(one.isa, one.fetch_from, one.block_from) for one in first} == {("avx512", 1, 8), ("amx", 1, 16)}
    assert kernels.now == {("avx512", "bf16"): (1, 25), ("avx512", "int8"): (1, 8), ("amx", "int8"): (1, 16)}
    kernels.now[("avx512", "int8")] = (1, 25)
    assert use_crossovers(kernels, ["int8", "int8"], [0]) == first
    assert kernels.timed == ["int8"]
    assert kernels.now[("avx512", "int8")] == (1, 8)
    assert {one.precision for one in read_crossovers(kernels, [0]) if one.measured} == {"int8"}
    assert dict(crossover_lines(read_crossovers(kernels, [0]))).keys() == {"bf16", "int8"}


def test_they_are_measured_anew_when_requested_and_for_other_cores(kernels: Any) -> None:
    use_crossovers(kernels, ["bf16"], [0])
    use_crossovers(kernels, ["bf16"], [0], anew=True)
    use_crossovers(kernels, ["bf16"], [0, 1])
    assert kernels.timed == ["bf16"] * 3
    assert len(json.loads(cache_file().read_text())["machines"]) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"machines": {"a": 1}}'])
def test_a_cache_that_cannot_be_read_is_replaced(content: str, kernels: Any) -> None:
    cache_file().parent.mkdir()
    cache_file().write_text(content)
    use_crossovers(kernels, ["bf16"], [0])
    assert use_crossovers(kernels, ["bf16"], [0])[0].block_from == 8
    assert kernels.timed == ["bf16"]


def test_a_cache_that_cannot_be_written_is_done_without(kernels: Any) -> None:
    cache_file().parent.write_text("a file in the place of the folder")
    assert use_crossovers(kernels, ["bf16"], [0])[0].block_from == 8


def test_real_kernels_are_timed_within_seconds_and_use_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pytest.importorskip("ktbench._kernels", reason="the extension is not built", exc_type=ImportError)
    monkeypatch.setenv("KTBENCH_CACHE", str(tmp_path))
    before = real.crossovers()
    found: tuple[Crossover, ...] = ()
    try:
        found = use_crossovers(real, ["q8_0"], [0])
        assert {
            (one.isa, one.precision): (one.fetch_from, one.block_from) for one in found
        }.items() <= real.crossovers().items()
    finally:
        for (isa, precision), pair in before.items():
            real.set_crossover(isa, precision, *pair)
    assert {one.isa for one in found} == {
        real.isa_of(f, "q8_0") for f in ("avx2", "avx512", "amx") if not real.grants()[f]
    }
