"""Facts of this machine, of machines made of files, and which of them make the identity."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest

from ktbench.host.environment import env_id, environment
from ktbench.host.health import Settings, read_settings
from ktbench.host.software import package_version, parse_version, program_versions
from ktbench.spec.record import Environment
from ktbench.spec.wire import from_plain, to_plain
from tests.command import python_output
from tests.host.conftest import CPU, Grow

FACTS: dict[str, Any] = {
    "cpu_model": "A",
    "cpus": [0, 1],
    "cores": 2,
    "numa_nodes": [[0, 1]],
    "memory_total_gib": 24,
    "granted": ["avx512"],
    "gpus": [],
    "load": 0.1,
    "kernel": "6.1.0",
    "memory_available_bytes": 10,
    "versions": {"torch": "2.13.0"},
}


@pytest.fixture(scope="module")
def here() -> Environment:
    return environment()


def test_facts_of_this_machine_are_plain_and_come_back(here: Environment) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(here))), Environment) == here
    assert set(here.facts["cpus"]) == os.sched_getaffinity(0)
    assert here.facts["python"] == platform.python_version()
    assert {*here.facts["granted"], *here.facts["refused"]} | {"avx2"} == {"avx2", "avx512", "amx", "numa", "cuda"}


def test_identities_are_the_same_in_another_process(here: Environment) -> None:
    ask = "from ktbench.host.environment import environment as e; print(e().env_id, e().code_id)"
    printed = python_output(ask)
    assert printed.split() == [here.env_id, here.code_id]


def test_asking_loads_nothing_heavy() -> None:
    ask = "import sys, ktbench.host.environment as e; e.environment(); print(*sys.modules)"
    printed = python_output(ask)
    assert not {"torch", "transformers", "pandas", "matplotlib", "hydra"} & set(printed.split())


@pytest.mark.parametrize("changed", ["cpu_model", "cpus", "cores", "numa_nodes", "memory_total_gib", "granted", "gpus"])
def test_another_machine_has_another_identity(changed: str) -> None:
    assert env_id(FACTS | {changed: ["other"]}) != env_id(FACTS)


@pytest.mark.parametrize("changed", ["load", "kernel", "memory_available_bytes", "versions"])
def test_moods_of_the_machine_do_not_count(changed: str) -> None:
    assert env_id(FACTS | {changed: ["other"]}) == env_id(FACTS)


def test_settings_of_a_virtual_machine(grow: Grow) -> None:
    files = {
        "proc/cpuinfo": "processor : 0\ncpu family\t: 6\nmodel\t\t: 173\nmodel name : Intel Xeon\nstepping : 1\n"
        "flags : fpu hypervisor\n\nprocessor : 1\nmodel name : other",
        "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock",
        "proc/loadavg": "1.25 0.5 0.2 1/89 50",
        "proc/sys/kernel/numa_balancing": "1",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock",
        "proc/sys/vm/swappiness": "60",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
        f"{CPU}/cpu2/cpufreq/scaling_governor": "performance",
        f"{CPU}/cpu3/cpufreq/scaling_governor": "powersave",
        f"{CPU}/cpu3/cpufreq/energy_performance_preference": "balance_power",
        f"{CPU}/intel_pstate/no_turbo": "0",
    }
    settings = read_settings(grow(files), cpus=(2, 3))
    assert settings == Settings(
        cpu_model="Intel Xeon (family 6, model 173, stepping 1)",
        kernel=platform.release(),
        hypervisor="KVM",
        governor="performance, powersave",
        turbo=True,
        thp="never",
        numa_balancing=True,
        load=1.25,
        energy_preference="balance_power",
        swappiness=60,
        clock_source="kvm-clock",
    )


def test_settings_of_bare_metal(grow: Grow) -> None:
    settings = read_settings(grow({"proc/cpuinfo": "flags : fpu", f"{CPU}/cpufreq/boost": "0"}))
    assert settings.hypervisor == "none"
    assert settings.turbo is False


def test_what_the_kernel_does_not_say_is_none(tmp_path: Path) -> None:
    settings = read_settings(tmp_path)
    said = {name: getattr(settings, name) for name in Settings.__dataclass_fields__ if name != "kernel"}
    assert set(said.values()) == {None}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022", "12.2.0"),
        ("Copyright (c) 2005-2025\nCuda compilation tools, release 13.0, V13.0.88", "13.0"),
        ("cmake version 3.25.1", "3.25.1"),
        ("version: 5581 (a1b2c3)\nbuilt with gcc 12.2", "5581"),
        ("no number", None),
    ],
)
def test_versions_that_programs_print(text: str, version: str | None) -> None:
    assert parse_version(text) == version


def test_programs_and_packages_that_are_missing_are_none() -> None:
    assert program_versions(("no-such-program",)) == {"no-such-program": None}
    assert package_version("no-such-package") is None
    assert package_version("pytest") == pytest.__version__
