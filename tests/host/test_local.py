"""The machine at hand as a `MachineSpec`, from what `probe` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ktbench.host import describe
from ktbench.host.describe import Constant, MachineDescription, machine_content, read_local_machine, save_description
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Environment
from ktbench.spec.wire import from_plain

ENV_ID = "e" * 12
PATH = Path("runs") / f"machine-{ENV_ID}.yaml"
PROBED = "measured by probe on 2026-11-20, median of 12 interleaved repeats"


def constant(value: float | None, unit: str, why: str = "") -> Constant:
    return Constant(title="a gauge", unit=unit, value=value, source=PROBED, why=why)


def described(nodes: int = 1, **constants: Constant) -> MachineDescription:
    """16 cores in so many nodes with 64 GiB; names of constants have `_` for `.`."""
    measured = {
        "read.all": constant(4e10, "bytes/s"),
        "peak.avx512.bf16.all": constant(1e12, "FLOP/s"),
        "peak.avx512.int8.all": constant(2e12, "OP/s"),
        "peak.amx": constant(None, "FLOP/s", "the processor has no AMX"),
        "read.across": constant(None, "bytes/s", "there is one NUMA node"),
    } | constants
    facts: dict[str, Any] = {"cores": 16, "numa_nodes": [[node] for node in range(nodes)], "memory_total_gib": 64}
    return MachineDescription(name="Test CPU", env_id=ENV_ID, created="2026-11-20", constants=measured, facts=facts)


def machine(description: MachineDescription) -> MachineSpec:
    return from_plain(machine_content(description, PATH), MachineSpec)


def test_one_domain() -> None:
    here = machine(described())
    assert (here.domains, here.cores, here.memory_gib) == (1, 16, 64.0)
    assert here.read_gb_per_s == here.remote_gb_per_s == 40.0
    assert (here.vector, here.vector_tflops, here.vector_int8_tops) == ("avx512", 1.0, 2.0)
    assert here.amx_tflops is None and here.gpu is None and here.calibration == "ktbench"
    assert here.title == "Test CPU"


def test_every_constant_names_the_file_and_its_day() -> None:
    sources = machine(described()).sources
    assert sources["read_gb_per_s"] == f"{PROBED} ({PATH.name}, 2026-11-20)"
    assert all(source.endswith(f"({PATH.name}, 2026-11-20)") for source in sources.values())
    assert "one domain" in sources["remote_gb_per_s"]


def test_several_domains_have_their_own_share() -> None:
    two = described(
        2,
        **{
            "read.node0": constant(3e10, "bytes/s"),
            "read.node1": constant(5e10, "bytes/s"),
            "read.node0_from_node1": constant(1e10, "bytes/s"),
            "peak.amx.bf16.all": constant(8e12, "FLOP/s"),
            "peak.amx.int8.all": constant(16e12, "OP/s"),
        },
    )
    here = machine(two)
    assert (here.domains, here.cores, here.memory_gib) == (2, 8, 32.0)
    assert (here.read_gb_per_s, here.remote_gb_per_s) == (40.0, 10.0)
    assert (here.vector_tflops, here.amx_tflops, here.amx_int8_tops) == (0.5, 4.0, 8.0)


def test_reads_across_that_could_not_be_measured_say_so() -> None:
    refused = constant(None, "bytes/s", "mbind: not permitted")
    two = described(2, **{"read.node0": constant(3e10, "bytes/s"), "read.across": refused})
    here = machine(two)
    assert here.remote_gb_per_s == here.read_gb_per_s == 30.0
    assert here.sources["remote_gb_per_s"].startswith("as its own memory: mbind: not permitted")


def test_a_machine_with_avx2_alone() -> None:
    missing = constant(None, "FLOP/s", "no AVX-512")
    narrow = {"peak.avx2.bf16.all": constant(4e11, "FLOP/s"), "peak.avx2.int8.all": constant(6e11, "OP/s")}
    here = machine(described(**{"peak.avx512.bf16.all": missing, "peak.avx512.int8.all": missing, **narrow}))
    assert (here.vector, here.vector_tflops, here.vector_int8_tops) == ("avx2", 0.4, 0.6)


@pytest.mark.parametrize(
    "gone, message",
    [
        ("read.all", "has no read bandwidth, run `python -m ktbench probe` again"),
        ("peak.avx512.bf16.all", "has no peak of avx512 or avx2"),
    ],
)
def test_what_is_missing_is_named(gone: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine_content(described(**{gone: constant(None, "bytes/s", "never measured")}), PATH)


def test_the_description_of_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "environment", lambda: Environment(env_id=ENV_ID, code_id="c" * 12))
    with pytest.raises(ValueError, match=r"machine=local: .*run `python -m ktbench probe` first"):
        read_local_machine(tmp_path)
    save_description(described(), tmp_path / PATH.name)
    assert read_local_machine(tmp_path) == machine_content(described(), PATH)
    (tmp_path / PATH.name).write_text("name: [")
    with pytest.raises(ValueError, match="is not YAML of a machine description"):
        read_local_machine(tmp_path)
