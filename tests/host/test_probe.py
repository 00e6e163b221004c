"""Roofs, gauges, placements and machine descriptions, on kernels of a made-up machine and on the real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ktbench.host import probe, roofs
from ktbench.host.code import load_extension
from ktbench.host.cuda import CudaDevices
from ktbench.host.describe import Constant, MachineDescription, load_description, save_description
from ktbench.host.probe import (
    Gauge,
    Instruments,
    Reading,
    Readings,
    buffers_needed,
    describe,
    open_instruments,
    read_rounds,
)
from ktbench.host.roofs import Roofs, best_isa, core_to_core_ns, open_roofs, pinned_team
from ktbench.host.topology import Topology, read_topology
from ktbench.spec.core_layout import CoreLayout
from ktbench.spec.record import Environment

MIB = 2**20
DAY = date(2026, 11, 20)
NO_GPU = CudaDevices(gpus=(), reason="no CUDA device: libcuda is not installed")
MACHINE = Environment(env_id="e" * 12, code_id="c" * 12, facts={"cpu_model": "Test CPU"})


def fake_kernels(**refused: str) -> Any:
    """Kernels of a machine that reads 10 GB/s and computes 1 TFLOPS or 2 TOPS per thread."""
    module = ModuleType("_kernels")
    pools: list[list[int]] = []

    class ThreadPool:
        def __init__(self, cpus: list[int], spin_us: int) -> None:
            self.cpus, self.threads = cpus, len(cpus)
            pools.append(cpus)

    class ReadRoof:
        def __init__(self, pool: ThreadPool, nbytes: int) -> None:
            self.pool = pool

        def sample(self, seconds: float) -> float:
            return 1e10 * self.pool.threads

        def read_once(self) -> None: ...

    hops = iter([900.0, 50.0] * 100)
    values = {
        "pools": pools,
        "ThreadPool": ThreadPool,
        "ReadRoof": ReadRoof,
        "grants": lambda: {"reference": "", "avx2": "", "avx512": "", "amx": ""} | refused,
        "peak_flops": lambda pool, isa, seconds, dtype: {"bf16": 1e12, "int8": 2e12}[dtype] * pool.threads,
        "ping_pong_ns": lambda pool: next(hops),
    }
    for name, value in values.items():
        setattr(module, name, value)
    return module


@pytest.fixture
def no_binding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory binding replaced by a list of the nodes asked for."""
    asked: list[int] = []

    class Bound:
        def __init__(self, node: int) -> None:
            asked.append(node)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(probe, "memory_on_node", Bound)
    return asked


def flat(cpus: set[int], root: Path) -> Topology:
    return read_topology(root / "empty", cpus)


def test_a_sample_adds_up_what_the_threads_do() -> None:
    kernels = fake_kernels()
    sample = Roofs(pinned_team(kernels, [0, 1]), kernels, 4 * MIB).sample()
    assert sample.read_bytes_per_s == pytest.approx(2e10)
    assert (sample.peak_flops, sample.peak_isa, sample.peak_dtype) == (2e12, "amx", "bf16")
    assert sample.ping_pong_ns == 50.0, "the least of several tries"
    other = Roofs(pinned_team(kernels, [0, 1]), kernels, 4 * MIB).sample("avx512", "int8")
    assert (other.peak_flops, other.peak_isa, other.peak_dtype) == (4e12, "avx512", "int8")


def test_memory_that_was_idle_is_read_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, now_s, did = fake_kernels(), [0.0], []

    def sample(self: Any, seconds: float) -> float:
        did.append("timed")
        return 1e10

    monkeypatch.setattr(kernels.ReadRoof, "sample", sample)
    monkeypatch.setattr(kernels.ReadRoof, "read_once", lambda self: did.append("read"))
    monkeypatch.setattr(roofs, "perf_counter", lambda: now_s[0])
    opened = Roofs(pinned_team(kernels, [0]), kernels, 4 * MIB)
    assert opened.sample().read_bytes_per_s == pytest.approx(1e10)
    opened.sample()
    assert did == ["read", "timed", "timed"], "what was read a moment ago is not read twice"
    now_s[0] = 5.0
    opened.sample()
    assert did[3:] == ["read", "timed"]


@pytest.mark.parametrize("dtype", ["int4", "float32", ""])
def test_a_dtype_without_a_roof_is_refused(dtype: str) -> None:
    kernels = fake_kernels()
    with pytest.raises(ValueError, match=f"^roof of dtype '{dtype}': allowed are bf16, int8$"):
        Roofs(pinned_team(kernels, [0]), kernels, 4 * MIB).sample("avx512", dtype)


def test_the_time_between_two_cores_needs_two() -> None:
    kernels = fake_kernels()
    assert core_to_core_ns(kernels, [4, 5, 6]) == 50.0
    assert kernels.pools == [[4, 5]]
    assert core_to_core_ns(kernels, [4]) is None
    assert Roofs(pinned_team(kernels, [0]), kernels, 4 * MIB).sample().ping_pong_ns is None


@pytest.mark.parametrize(
    ("refused", "best"),
    [((), "amx"), (("amx",), "avx512"), (("amx", "avx512"), "avx2"), (("amx", "avx512", "avx2"), "reference")],
)
def test_the_peak_is_that_of_the_fastest_granted_isa(refused: tuple[str, ...], best: str) -> None:
    kernels = fake_kernels(**dict.fromkeys(refused, "the CPU has none"))
    assert best_isa(kernels.grants()) == best
    sample = Roofs(pinned_team(kernels, [0]), kernels, 4 * MIB).sample()
    assert sample.peak_isa == best
    assert (sample.peak_flops is None) == (best == "reference")


def test_one_node_has_a_gauge_for_all_cores_and_one(tmp_path: Path) -> None:
    kernels = fake_kernels(amx="the CPU has no amx_tile")
    found = open_instruments(kernels, flat({0, 1}, tmp_path), NO_GPU, 4 * MIB)
    keys = [gauge.key for gauge in found.gauges]
    assert keys == [
        "read.all",
        "read.one",
        "peak.avx512.bf16.all",
        "peak.avx512.bf16.one",
        "peak.avx512.int8.all",
        "peak.avx512.int8.one",
        "peak.avx2.bf16.all",
        "peak.avx2.bf16.one",
        "peak.avx2.int8.all",
        "peak.avx2.int8.one",
        "ping_pong",
    ]
    units = {gauge.key: (gauge.unit, gauge.read()) for gauge in found.gauges}
    assert units["peak.avx512.bf16.all"] == ("FLOP/s", 2e12)
    assert units["peak.avx512.int8.one"] == ("OP/s", 2e12)
    assert found.hop is found.gauges[-1]
    assert {key: gap.why for key, gap in found.missing.items()} == {
        "peak.amx": "the CPU has no amx_tile",
        "read.across": "there is one NUMA node",
        "gpu.launch": NO_GPU.reason,
        "link.copy": NO_GPU.reason,
        "link.copy_with_read": NO_GPU.reason,
    }
    assert kernels.pools == [[0, 1], [0]]
    assert buffers_needed(flat({0, 1}, tmp_path)) == len(kernels.pools)


def test_two_nodes_read_their_own_and_each_others_memory(two_sockets: Path, no_binding: list[int]) -> None:
    kernels, topology = fake_kernels(), read_topology(two_sockets, range(7))
    found = open_instruments(kernels, topology, NO_GPU, 4 * MIB)
    reads = [gauge.key for gauge in found.gauges if gauge.key.startswith("read.")]
    assert reads == ["read.all", "read.one", "read.node0", "read.node1", "read.node0_from_node1"]
    assert kernels.pools == [[0, 1, 2, 3], [0], [0, 1], [2, 3], [0, 1]]
    assert buffers_needed(topology) == len(kernels.pools)
    assert no_binding == [1]


def test_a_kernel_that_refuses_binding_leaves_a_reason(two_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: int) -> None:
        raise OSError(1, "set_mempolicy: Operation not permitted")

    monkeypatch.setattr(probe, "memory_on_node", refuse)
    found = open_instruments(fake_kernels(), read_topology(two_sockets, range(7)), NO_GPU, 4 * MIB)
    assert "Operation not permitted" in found.missing["read.across"].why


def test_one_core_says_why_it_has_no_ping_pong(tmp_path: Path) -> None:
    found = open_instruments(fake_kernels(), flat({0}, tmp_path), NO_GPU, 4 * MIB)
    assert found.missing["ping_pong"].why == "there is one usable core"
    assert "ping_pong" not in [gauge.key for gauge in found.gauges]
    assert found.hop is None


def instruments(keys: str, diary: list[str], hops: Iterator[float] | None = None) -> Instruments:
    """Gauges that write their key into the diary and count up, with a hop that reads what is given."""

    def gauge(key: str) -> Gauge:
        return Gauge(key=key, title=key, unit="ns", read=lambda: diary.append(key) or float(len(diary)))  # type: ignore[func-returns-value]

    hop = Gauge(key="hop", title="hop", unit="ns", read=lambda: next(hops)) if hops is not None else None
    return Instruments(gauges=tuple(map(gauge, keys)), missing={}, hop=hop)


def values(readings: Readings) -> dict[str, float]:
    return {key: reading.value for key, reading in readings.items()}


def test_rounds_walk_there_and_back() -> None:
    diary: list[str] = []
    rounds = list(read_rounds(instruments("abc", diary), rounds=2, seconds=0.0))
    assert diary == ["a", "b", "c", "c", "b", "a"]
    assert [values(readings) for readings in rounds] == [{"a": 1, "b": 2, "c": 3}, {"c": 4, "b": 5, "a": 6}]


@pytest.mark.parametrize(("rounds", "seconds", "read"), [(3, 0.0, 3), (1, 5.0, 5), (9, 5.0, 9), (1, 0.0, 1)])
def test_rounds_go_on_until_there_are_enough_and_long_enough(rounds: int, seconds: float, read: int) -> None:
    diary: list[str] = []  # every reading takes a second
    given = read_rounds(instruments("a", diary), rounds, seconds, clock=lambda: float(len(diary)))
    assert len(list(given)) == read


def test_a_reading_is_placed_by_the_hops_around_it() -> None:
    hops = iter([28.0, 30.0, 155.0, 155.0, 9.0])
    (readings,) = read_rounds(instruments("abcd", [], hops), rounds=1, seconds=0.0)
    placed = {key: reading.placement for key, reading in readings.items()}
    assert placed == {"a": "near", "b": "moved", "c": "far", "d": "moved"}
    (readings,) = read_rounds(instruments("a", []), rounds=1, seconds=0.0)  # one core
    assert readings["a"].placement is None


def described(*readings: tuple[float, CoreLayout | None]) -> MachineDescription:
    """A machine whose read bandwidth was seen so, round by round; by default in a quiet two-core guest."""
    gauge = Gauge(key="read.all", title="read", unit="bytes/s", read=lambda: 0.0)
    gap = Constant(title="copy", unit="bytes/s", why="no CUDA device")
    seen = readings or ((30.0, "near"), (28.0, "near"), (155.0, "near"))
    rounds = [{"read.all": Reading(value=value, placement=placed)} for value, placed in seen]
    return describe(Instruments(gauges=(gauge,), missing={"link.copy": gap}), rounds, MACHINE, DAY)


def test_a_description_keeps_every_sample_with_unit_and_source() -> None:
    machine = described()
    read = machine.constants["read.all"]
    assert (read.value, read.unit, read.samples) == (30.0, "bytes/s", (30.0, 28.0, 155.0))
    assert read.source == ("measured by probe on 2026-11-20, median of 3 interleaved repeats while the cores were near")
    assert machine.constants["link.copy"].value is None
    assert (machine.name, machine.env_id) == ("Test CPU", MACHINE.env_id)


def test_values_hold_where_the_cores_were_most_often() -> None:
    machine = described((31.0, "near"), (50.0, "far"), (40.0, "moved"), (52.0, "far"), (20.0, "moved"), (5.0, "moved"))
    read = machine.constants["read.all"]
    assert (machine.placement, read.value) == ("far", 51.0)
    assert read.samples == (31.0, 50.0, 40.0, 52.0, 20.0, 5.0)
    assert (read.samples_at("near"), read.samples_at("moved")) == ((31.0,), (40.0, 20.0, 5.0))


def test_a_constant_never_read_where_the_cores_were_most_often_says_so() -> None:
    gauges_ = tuple(Gauge(key=key, title=key, unit="ns", read=lambda: 0.0) for key in "ab")
    near, moved = Reading(value=1.0, placement="near"), Reading(value=2.0, placement="moved")
    machine = describe(Instruments(gauges=gauges_, missing={}), [{"a": near, "b": moved}], MACHINE, DAY)
    assert machine.constants["a"].value == 1.0
    assert machine.constants["b"].value is None
    assert "never measured while the cores were near" in machine.constants["b"].why


def test_cores_that_never_stood_still_are_described_all_the_same() -> None:
    machine = described((30.0, "moved"), (50.0, "moved"))
    assert (machine.placement, machine.constants["read.all"].value) == ("moved", 40.0)


def test_samples_beside_something_else_on_a_core_are_kept_and_do_not_count(tmp_path: Path) -> None:
    machine = described((30.0, "near"), (50.0, None), (32.0, "near"), (20.0, None), (21.0, None))
    read = machine.constants["read.all"]
    assert (machine.placement, read.value) == ("near", 31.0)
    assert (read.placements, read.samples_at(None)) == (("near", None, "near", None, None), (50.0, 20.0, 21.0))
    save_description(machine, tmp_path / "machine.yaml")
    assert load_description(tmp_path / "machine.yaml") == machine


def test_one_core_describes_all_samples() -> None:
    machine = described((30.0, None), (50.0, None))
    read = machine.constants["read.all"]
    assert (machine.placement, read.placements, read.value) == (None, (), 40.0)
    assert read.samples_at(None) == (30.0, 50.0)
    assert read.source.endswith("median of 2 interleaved repeats")


def test_a_description_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "machine.yaml"
    save_description(described(), path)
    assert load_description(path) == described()
    assert "samples: [30.0, 28.0, 155.0]" in path.read_text(), "many samples take few lines"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("a: [1", "not YAML of a machine description"),
        ("name: x", "missing required field"),
        ("- 1", "Expected object"),
    ],
)
def test_a_file_that_is_no_description_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "machine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=said) as caught:
        load_description(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_number_needs_a_source_and_a_gap_a_reason() -> None:
    with pytest.raises(ValueError, match="hop: value 30 ns needs a source"):
        Constant(title="hop", unit="ns", value=30)
    with pytest.raises(ValueError, match="hop: a value of None needs a why"):
        Constant(title="hop", unit="ns")
    with pytest.raises(ValueError, match="hop: 1 placements for 2 samples"):
        Constant(title="hop", unit="ns", value=1.5, source="measured", samples=(1, 2), placements=("near",))


def test_the_real_kernels_give_positive_roofs() -> None:
    extension, topology = load_extension(), read_topology()
    if extension.module is None:
        pytest.skip(extension.reason)
    found = open_instruments(extension.module, topology, NO_GPU, 64 * MIB)
    (readings,) = read_rounds(found, rounds=1, seconds=0.0)
    assert set(readings) == {gauge.key for gauge in found.gauges}
    assert all(reading.value > 0 for reading in readings.values())
    assert all((reading.placement is None) == (found.hop is None) for reading in readings.values())


def test_roofs_open_on_pytorchs_threads() -> None:
    if load_extension().module is None:
        pytest.skip("the kernel extension is not built")
    import torch  # noqa: F401 - brings the threads

    before = os.sched_getaffinity(0)
    try:
        sample = open_roofs(sorted(before)[:1]).sample()
    finally:
        os.sched_setaffinity(0, before)
    assert sample.ping_pong_ns is None
    assert sample.read_bytes_per_s > 0


def test_a_ceiling_is_that_of_the_level_that_could_hold_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, sizes = fake_kernels(), []

    def opened(self: Any, pool: Any, nbytes: int) -> None:
        self.pool = pool
        sizes.append(nbytes)

    monkeypatch.setattr(kernels.ReadRoof, "__init__", opened)
    limits = Roofs(pinned_team(kernels, [0]), kernels, 512 * MIB)
    for _ in range(3):
        limits.ceiling(40 * MIB, again=True)
    assert sizes == [512 * MIB, 4 * MIB], "one that an eighth of the weights fill, opened once"


def test_a_ceiling_that_is_known_is_sampled_again_on_demand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, rates = fake_kernels(), count(1)
    monkeypatch.setattr(kernels.ReadRoof, "sample", lambda self, seconds: 1e9 * next(rates))
    limits = Roofs(pinned_team(kernels, [0]), kernels, 512 * MIB)
    first, second = limits.ceiling(40 * MIB), limits.ceiling(40 * MIB)
    assert first == second
    assert limits.ceiling(40 * MIB, again=True).read_bytes_per_s > first.read_bytes_per_s


def test_a_busy_machine_does_not_lower_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short samples a few are undisturbed; long ones always share the cores with others."""
    kernels, taken = fake_kernels(), count(1)

    def disturbed(seconds: float) -> float:
        return 0.5 if seconds > 0.003 or next(taken) % 7 else 1.0

    monkeypatch.setattr(kernels.ReadRoof, "sample", lambda self, seconds: 4e10 * disturbed(seconds))
    monkeypatch.setattr(kernels, "peak_flops", lambda pool, isa, seconds, dtype: 1e12 * disturbed(seconds))
    ceiling = Roofs(pinned_team(kernels, [0]), kernels, MIB).ceiling(40 * MIB)
    assert (ceiling.read_bytes_per_s, ceiling.peak_flops) == (4e10, 1e12)


def test_a_ceiling_is_not_below_what_was_sampled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, slowed = fake_kernels(), [1.0]
    monkeypatch.setattr(kernels.ReadRoof, "sample", lambda self, seconds: 3e10 * slowed[0])
    monkeypatch.setattr(kernels, "peak_flops", lambda pool, isa, seconds, dtype: 2e12 * slowed[0])
    limits = Roofs(pinned_team(kernels, [0]), kernels, 512 * MIB)
    limits.sample()
    slowed[0] = 0.1
    ceiling = limits.ceiling(40 * MIB)
    assert (ceiling.read_bytes_per_s, ceiling.peak_flops) == (3e10, 2e12)
