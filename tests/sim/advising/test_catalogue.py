"""The catalogue of parts, and machines made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.config.machine import preset
from ktbench.sim.advising.catalogue import Modules, catalogue, read_box, read_modules
from ktbench.spec.machine import BY_NAME
from tests.sim.testbed import box_of

PARTS = catalogue()


def test_there_are_enough_parts_to_be_of_use() -> None:
    assert len(PARTS.cpus) >= 40
    assert len(PARTS.gpus) >= 30


@pytest.mark.parametrize("kind", ["cpus", "gpus", "instructions", "memory", "fabrics", "links", "platforms"])
def test_every_part_has_a_source(kind: str) -> None:
    for name, part in getattr(PARTS, kind).items():
        source = PARTS.sources.get(part.source, part.source)
        assert source.strip(), name
        assert kind not in ("cpus", "gpus") or source.startswith("https://"), name


def test_every_source_is_used() -> None:
    assert {part.source for group in (PARTS.cpus, PARTS.gpus) for part in group.values()} >= PARTS.sources.keys()


def test_every_platform_is_that_of_a_processor() -> None:
    assert {cpu.platform for cpu in PARTS.cpus.values()} - {None} == PARTS.platforms.keys()


@pytest.mark.parametrize("cpu", PARTS.cpus)
def test_every_processor_makes_a_machine_whose_constants_have_sources(cpu: str) -> None:
    machine = box_of(cpu, "RTX 4090").machine()
    row = PARTS.cpus[cpu]
    assert machine.cores == row.cores
    assert (machine.amx_tflops is not None) == (row.isa == "sapphire_rapids")
    assert all(machine.sources[name] for name in BY_NAME if getattr(machine, name) is not None)


@pytest.mark.parametrize("gpu", PARTS.gpus)
def test_every_card_makes_a_machine(gpu: str) -> None:
    machine = box_of("EPYC 9654", gpu).machine()
    assert machine.gpu == gpu
    assert machine.gpu_memory_gib == PARTS.gpus[gpu].memory_gib


# Bandwidth of a socket in GB/s as AMD's and Intel's pages have it, and the kind of share that is read.
@pytest.mark.parametrize(
    ("cpu", "gb_per_s", "share"),
    [
        ("EPYC 9654", 460.8, "io_die"),
        ("EPYC 7763", 204.8, "efficiency"),
        ("Xeon Gold 6454S", 307.2, "efficiency"),
        ("Ryzen 9 7950X", 83.2, "io_die"),
    ],
)
def test_what_is_read_is_a_share_of_the_published_bandwidth(cpu: str, gb_per_s: float, share: str) -> None:
    kind = PARTS.memory[next(iter(PARTS.cpus[cpu].memory))]
    machine = box_of(cpu).machine()
    assert machine.read_gb_per_s == pytest.approx(gb_per_s * getattr(kind, share))
    assert f"x {getattr(kind, share):g} (" in machine.sources["read_gb_per_s"]


def test_a_measured_epyc_reads_what_its_owner_measured() -> None:
    """500 GB/s with twelve modules at 6000 MT/s (discussion 357 of ik_llama.cpp)."""
    assert read_box("EPYC 9355", 1, "12x64 DDR5-6000", None).machine().read_gb_per_s == pytest.approx(500, rel=0.01)


def test_the_papers_box_is_that_of_its_preset() -> None:
    made = box_of("Xeon Platinum 8452Y", "RTX 4080", sockets=2).machine()
    known = preset("paper_4080")
    assert made.domains == known["domains"]
    for name in ("read_gb_per_s", "remote_gb_per_s", "vector_tflops", "amx_tflops", "gpu_gb_per_s", "gpu_tflops"):
        assert getattr(made, name) == pytest.approx(known[name], rel=0.01), name


def test_links_of_chiplets_limit_what_is_read() -> None:
    """Of two chiplets with two links of 64 GB/s each, not of twelve channels."""
    assert box_of("EPYC 9115").machine().read_gb_per_s == 256


def test_modules_run_as_fast_as_the_processor_allows() -> None:
    slow, fast = (read_box("EPYC 9654", 1, f"12x64 DDR5-{mts}", None) for mts in (4800, 6400))
    assert slow.machine().read_gb_per_s == fast.machine().read_gb_per_s
    desk, overclocked = (read_box("Core i9-14900K", 1, f"2x48 DDR5-{mts}", None) for mts in (5600, 6800))
    assert overclocked.machine().read_gb_per_s > desk.machine().read_gb_per_s


def test_half_of_the_channels_read_half() -> None:
    half, whole = (read_box("EPYC 9654", 1, f"{count}x64 DDR5-4800", None) for count in (6, 12))
    assert whole.machine().read_gb_per_s == pytest.approx(2 * half.machine().read_gb_per_s)


# As servers' manuals and AMD's pages have it (`platforms`); the processor's own limit where that is lower.
@pytest.mark.parametrize(
    ("cpu", "ram", "mts"),
    [
        ("EPYC 9654", "24x64 DDR5-4800", 3600),
        ("EPYC 9654", "13x64 DDR5-4800", 3600),
        ("Xeon Platinum 8480+", "16x64 DDR5-4800", 4400),
        ("Xeon Silver 4410Y", "16x64 DDR5-4800", 4000),
        ("Xeon Platinum 8592+", "16x64 DDR5-5600", 4400),
        ("Xeon Platinum 8380", "16x64 DDR4-3200", 3200),
        ("Xeon E5-2680 v4", "8x32 DDR4-2400", 2400),
        ("Xeon E5-2680 v4", "12x32 DDR4-2400", 1866),
        ("Ryzen 9 7950X", "4x48 DDR5-6000", 3600),
        ("Ryzen 9 7950X", "4x48 DDR5-3200", 3200),
        ("Ryzen 9 7950X", "4x48 DDR5-6000 at 5200", 5200),
    ],
)
def test_modules_that_share_a_channel_are_slower(cpu: str, ram: str, mts: int) -> None:
    box = read_box(cpu, 1, ram, None)
    alone = replace(box, ram=replace(box.ram, count=PARTS.cpus[cpu].channels, mts=mts, runs_at=None))
    assert box.rated_mts == alone.rated_mts == mts
    assert box.machine().read_gb_per_s == pytest.approx(alone.machine().read_gb_per_s)
    assert f"at {mts} MT/s" in box.machine().sources["read_gb_per_s"]


def test_without_a_source_modules_that_share_a_channel_are_as_fast_as_alone() -> None:
    box = read_box("EPYC 9355", 1, "24x64 DDR5-6400", None)
    assert box.shared_rate is None
    assert box.rated_mts == 6400


@given(st.integers(1, 48), st.integers(1, 512), st.sampled_from(sorted(PARTS.memory)), st.integers(1, 9999))
def test_modules_are_read_as_they_are_written(count: int, gib: int, kind: str, mts: int) -> None:
    for runs_at in (None, mts):
        modules = Modules(count=count, gib=gib, kind=kind, mts=mts, runs_at=runs_at)
        assert read_modules(str(modules)) == modules


@pytest.mark.parametrize("name", ["epyc 9355", "AMD EPYC 9355", "  Amd  Epyc(TM) 9355 "])
def test_makers_and_case_do_not_matter(name: str) -> None:
    assert (
        read_box(name, 1, "12x64 DDR5-6400", "NVIDIA GeForce RTX 4090").title == "EPYC 9355, 12x64 DDR5-6400, RTX 4090"
    )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("EPYC 935", 1, "12x64 DDR5-6400", None), ("cpu=EPYC 935", "nearest", "EPYC 9355")),
        (("EPYC 9355", 1, "12x64 DDR5-6400", "RTX 409"), ("gpu=RTX 409", "nearest", "RTX 4090")),
        (("EPYC 9355", 3, "12x64 DDR5-6400", None), ("sockets=3", "1 to 2")),
        (("EPYC 9355", 1, "12 modules", None), ("ram=12 modules", "24x32 DDR5-6400")),
        (("EPYC 9355", 1, "12x64 HBM-6400", None), ("HBM", "DDR4, DDR5, MRDIMM")),
        (("EPYC 9355", 1, "0x64 DDR5-6400", None), ("above 0",)),
        (("EPYC 9355", 1, "12x64 DDR5-6400 at 0", None), ("above 0",)),
        (("EPYC 9355", 1, "12x64 DDR5-6400 at", None), ("ram=12x64 DDR5-6400 at",)),
        (("EPYC 9355", 1, "12x64 DDR4-3200", None), ("EPYC 9355 takes DDR5",)),
        (("EPYC 9355", 2, "13x64 DDR5-6400", None), ("up to 48 modules",)),
        (("Ryzen 9 7950X", 1, "6x64 DDR5-6400", None), ("up to 4 modules",)),
        (("Xeon 6980P", 2, "26x64 DDR5-6400", None), ("up to 24 modules",)),
        (("Threadripper PRO 5995WX", 1, "16x64 DDR4-3200", None), ("up to 8 modules",)),
        (("Xeon E5-2680 v4", 1, "16x64 DDR4-2400", None), ("up to 12 modules",)),
        (("EPYC 9355", 1, "12x64 DDR5-6400", "0x RTX 4090"), ("gpu=0x RTX 4090",)),
    ],
)
def test_what_is_not_in_the_catalogue_is_refused(
    parts: tuple[str, int, str, str | None], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=".") as refused:
        read_box(*parts)
    assert "\n" not in str(refused.value)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("text", ["24x32 DDR5-99999", "24x32 DDR5-6400 at 99999", "2x16 DDR4-64000"])
def test_modules_that_are_faster_than_any_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="that fast; allowed are at most"):
        read_modules(text)


def test_a_rate_that_the_processor_does_not_allow_is_said() -> None:
    capped, allowed = (read_box("EPYC 9355", 2, f"24x32 DDR5-{rate}", None) for rate in (8000, 6000))
    assert "8000" in capped.machine().sources["read_gb_per_s"]
    assert "allows" not in allowed.machine().sources["read_gb_per_s"]
