"""Roofs, gauges and machine descriptions, on kernels that keep a diary and on the real ones."""

from __future__ import annotations

from datetime import date
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ktbench.core.record import Environment
from ktbench.host import gauges
from ktbench.host.cuda import CudaDevices
from ktbench.host.describe import Constant, MachineDescription, load_description, save_description
from ktbench.host.extension import load_extension
from ktbench.host.gauges import Gauge, Instruments, buffers_needed, open_instruments
from ktbench.host.probe import describe, placement, read_rounds
from ktbench.host.roofs import Roofs, best_isa, open_roofs, pinned_team
from ktbench.host.topology import Topology, read_topology

MIB = 2**20
DAY = date(2026, 11, 20)
NO_GPU = CudaDevices(gpus=(), reason="no CUDA device: libcuda is not installed")
MACHINE = Environment(env_id="e" * 12, code_id="c" * 12, facts={"cpu_model": "Test CPU"})


def fake_kernels(**refused: str) -> Any:
    """Kernels of a machine that reads 10 GB/s and computes 1 TFLOP/s per thread."""
    module = ModuleType("_kernels")
    pools: list[list[int]] = []

    class ThreadPool:
        def __init__(self, cpus: list[int], spin_us: int) -> None:
            self.cpus, self.threads = cpus, len(cpus)
            pools.append(cpus)

    class ReadRoof:
        def __init__(self, pool: ThreadPool, nbytes: int) -> None:
            self.pool = pool

        def sample(self, nbytes: int) -> float:
            return 1e10 * self.pool.threads

    hops = iter([900.0, 50.0] * 100)
    values = {
        "pools": pools,
        "ThreadPool": ThreadPool,
        "ReadRoof": ReadRoof,
        "grants": lambda: {"reference": "", "avx2": "", "avx512": "", "amx": ""} | refused,
        "peak_flops": lambda pool, isa, seconds: 1e12 * pool.threads,
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

    monkeypatch.setattr(gauges, "memory_on_node", Bound)
    return asked


def flat(cpus: set[int], root: Path) -> Topology:
    return read_topology(root / "empty", cpus)


def test_a_sample_adds_up_what_the_threads_do() -> None:
    kernels = fake_kernels()
    sample = Roofs(pinned_team(kernels, [0, 1]), kernels, 4 * MIB).sample()
    assert sample.read_bytes_per_s == pytest.approx(2e10)
    assert (sample.peak_flops, sample.peak_isa) == (2e12, "amx")
    assert sample.ping_pong_ns == 50.0, "the least of several tries"


def test_one_core_has_no_ping_pong() -> None:
    kernels = fake_kernels()
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
        "peak.avx512.all",
        "peak.avx512.one",
        "peak.avx2.all",
        "peak.avx2.one",
        "ping_pong",
    ]
    assert {key: gap.why for key, gap in found.missing.items()} == {
        "peak.amx.all": "the CPU has no amx_tile",
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

    monkeypatch.setattr(gauges, "memory_on_node", refuse)
    found = open_instruments(fake_kernels(), read_topology(two_sockets, range(7)), NO_GPU, 4 * MIB)
    assert "Operation not permitted" in found.missing["read.across"].why


def test_one_core_says_why_it_has_no_ping_pong(tmp_path: Path) -> None:
    found = open_instruments(fake_kernels(), flat({0}, tmp_path), NO_GPU, 4 * MIB)
    assert found.missing["ping_pong"].why == "there is one usable core"
    assert "ping_pong" not in [gauge.key for gauge in found.gauges]


def test_rounds_walk_there_and_back() -> None:
    diary: list[str] = []

    def gauge(key: str) -> Gauge:
        return Gauge(key=key, title=key, unit="ns", read=lambda: diary.append(key) or float(len(diary)))  # type: ignore[func-returns-value]

    rounds = list(read_rounds((gauge("a"), gauge("b"), gauge("c")), 2))
    assert diary == ["a", "b", "c", "c", "b", "a"]
    assert rounds == [{"a": 1.0, "b": 2.0, "c": 3.0}, {"c": 4.0, "b": 5.0, "a": 6.0}]


def described() -> MachineDescription:
    gauge = Gauge(key="ping_pong", title="hop", unit="ns", read=lambda: 0.0)
    gap = Constant(title="copy", unit="bytes/s", why="no CUDA device")
    rounds = [{"ping_pong": value} for value in (30.0, 28.0, 155.0)]
    return describe(Instruments(gauges=(gauge,), missing={"link.copy": gap}), rounds, MACHINE, DAY)


def test_a_description_keeps_every_sample_with_unit_and_source() -> None:
    machine = described()
    hop = machine.constants["ping_pong"]
    assert (hop.value, hop.unit, hop.samples) == (30.0, "ns", (30.0, 28.0, 155.0))
    assert hop.source == "measured by probe on 2026-11-20, median of 3 interleaved repeats"
    assert machine.constants["link.copy"].value is None
    assert machine.placement == "near"
    assert (machine.name, machine.env_id) == ("Test CPU", MACHINE.env_id)


def test_placement_tells_near_from_far() -> None:
    assert [placement(ns) for ns in (28.0, 65.0, 155.0)] == ["near", "near", "far"]


def test_a_description_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "machine.yaml"
    save_description(described(), path)
    assert load_description(path) == described()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("a: [1", "not a machine description"),
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


def test_the_real_kernels_give_positive_roofs() -> None:
    extension, topology = load_extension(), read_topology()
    if extension.module is None:
        pytest.skip(extension.reason)
    found = open_instruments(extension.module, topology, NO_GPU, 64 * MIB)
    (readings,) = islice(read_rounds(found.gauges, 1), 1)
    assert set(readings) == {gauge.key for gauge in found.gauges}
    assert all(value > 0 for value in readings.values())


def test_roofs_open_on_pytorchs_threads() -> None:
    if load_extension().module is None:
        pytest.skip("the kernel extension is not built")
    import torch  # noqa: F401 - brings the threads

    sample = open_roofs(threads=1).sample()
    assert sample.ping_pong_ns is None
    assert sample.read_bytes_per_s > 0
