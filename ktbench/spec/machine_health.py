"""How a machine is set and shared, as far as it spoils measurements: checks judged from recorded facts.

The checks are the same for `doctor` and for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ktbench.spec.core_layout import core_layout_at

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing about a machine, or about what happened during a turn, that makes timings slower or noisier.

    `needs` names the facts that it is judged by, `reads` the files that they are read from, `good` what they should
    say. `wrong` says what is wrong, empty where nothing is. `harm` is what that does to a measurement, `cure` the
    command or the step that ends it.
    """

    name: str
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    good: str
    wrong: Callable[[Facts], str]
    harm: str
    cure: str

    def is_known(self, facts: Facts) -> bool:
        """Whether there are all facts that it takes to judge."""
        return all(facts.get(name) is not None for name in self.needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """A check that found something wrong, and what."""

    check: Check
    said: str


def warnings(checks: Sequence[Check], facts: Facts) -> tuple[Warned, ...]:
    """The checks that find something wrong; those that lack facts find nothing."""
    found = [(check, check.wrong(facts)) for check in checks if check.is_known(facts)]
    return tuple(Warned(check=check, said=said) for check, said in found if said)


def unknown(checks: Sequence[Check], facts: Facts) -> tuple[Check, ...]:
    """The checks that lack facts."""
    return tuple(check for check in checks if not check.is_known(facts))


_SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")
_SAVING = ("power", "balance_power", "balance_performance")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")
_CPUFREQ = "sys/devices/system/cpu/cpu*/cpufreq"
_STOLEN = 0.01


def _of(words: str, bad: tuple[str, ...]) -> bool:
    """Whether one of the words, which differ where cpus differ, is a bad one."""
    return any(word in bad for word in words.split(", "))


def _quota(facts: Facts) -> str:
    quota, cpus = facts.get("cpu_quota"), len(facts["cpus"])
    return f"a control group grants the time of {quota:g} cpus on {cpus}" if quota is not None and quota < cpus else ""


def _one_core(facts: Facts) -> str:
    hop_ns = facts["core_to_core_ns"]
    if core_layout_at(hop_ns) != "same core":
        return ""
    return f"the first two cores share one physical core now ({hop_ns:.0f} ns from one to the other)"


_PROCESSOR_CHECKS = (
    Check(
        name="governor",
        needs=("governor",),
        reads=(f"{_CPUFREQ}/scaling_governor",),
        good="performance",
        wrong=lambda facts: f"cpu governor {facts['governor']}" if _of(facts["governor"], _SLOW_GOVERNORS) else "",
        harm="clocks rise late and drop between steps",
        cure="sudo cpupower frequency-set -g performance",
    ),
    Check(
        name="energy preference",
        needs=("energy_preference",),
        reads=(f"{_CPUFREQ}/energy_performance_preference",),
        good="performance",
        wrong=lambda facts: (
            f"energy preference {facts['energy_preference']}" if _of(facts["energy_preference"], _SAVING) else ""
        ),
        harm="the processor itself keeps clocks low to save energy",
        cure=f"echo performance | sudo tee /{_CPUFREQ}/energy_performance_preference",
    ),
    Check(
        name="turbo",
        needs=("turbo",),
        reads=("sys/devices/system/cpu/intel_pstate/no_turbo", "sys/devices/system/cpu/cpufreq/boost"),
        good="off to repeat a number, on to see the highest",
        wrong=lambda facts: "turbo is on" if facts["turbo"] else "",
        harm="clocks follow temperature and the number of busy cores",
        cure="echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo (other drivers: echo 0 | sudo tee "
        "/sys/devices/system/cpu/cpufreq/boost), or leave it on and compare only what was measured in turns",
    ),
    Check(
        name="thermal",
        needs=("thermal_stops",),
        reads=("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count",),
        good="no throttling",
        wrong=lambda facts: (
            f"cores were throttled for heat {facts['thermal_stops']:,} times since start-up"
            if facts["thermal_stops"]
            else ""
        ),
        harm="clocks drop under load, the later the more",
        cure="see to cooling and power limits: sudo turbostat --interval 1 shows clocks, temperatures and watts",
    ),
    Check(
        name="load",
        needs=("load", "cores"),
        reads=("proc/loadavg",),
        good="at most one runnable thread a core in the last minute",
        wrong=lambda facts: (
            f"load {facts['load']:.1f} is above the {facts['cores']} usable cores"
            if facts["load"] > facts["cores"]
            else ""
        ),
        harm="threads wait for a core",
        cure="end what else runs: top -o %CPU",
    ),
    Check(
        name="others running",
        needs=("others_running",),
        reads=("proc/loadavg",),
        good="no other programs",
        wrong=lambda facts: (
            f"{facts['others_running']} other threads are running" if facts["others_running"] > 0 else ""
        ),
        harm="they take cores, caches and memory bandwidth",
        cure="end what else runs: top -o %CPU",
    ),
    Check(
        name="shared cores",
        needs=("foreign_siblings",),
        reads=("sys/devices/system/cpu/cpu*/topology/thread_siblings_list",),
        good="whole cores are ours",
        wrong=lambda facts: (
            f"cpus {', '.join(map(str, facts['foreign_siblings']))} are others' and share cores with ours"
            if facts["foreign_siblings"]
            else ""
        ),
        harm="who runs there takes up to half of our core",
        cure="ask for whole cores (taskset, cpuset), or switch hyperthreads off: "
        "echo off | sudo tee /sys/devices/system/cpu/smt/control",
    ),
    Check(
        name="cpu quota",
        needs=("cpus",),
        reads=("proc/self/cgroup",),
        good="none below the usable cpus",
        wrong=_quota,
        harm="threads get stopped in the middle of a step",
        cure="raise the quota (docker run --cpus, cpu.max), or start with taskset on as many cpus as it grants",
    ),
    Check(
        name="steal",
        needs=("stolen_share",),
        reads=("proc/stat",),
        good=f"below {_STOLEN:.0%}",
        wrong=lambda facts: (
            f"the hypervisor gave {facts['stolen_share']:.1%} of our time to others since start-up"
            if facts["stolen_share"] > _STOLEN
            else ""
        ),
        harm="steps stop while another machine runs on the core",
        cure="ask for a machine with dedicated cores",
    ),
    Check(
        name="core placement",
        needs=("core_to_core_ns",),
        reads=("the kernel extension's ping-pong",),
        good="a core for each thread",
        wrong=_one_core,
        harm="both together compute like one",
        cure="ask for dedicated cores, or see with `python -m ktbench probe` how often it happens",
    ),
    Check(
        name="clock source",
        needs=("clock_source",),
        reads=("sys/devices/system/clocksource/clocksource0/current_clocksource",),
        good="tsc or kvm-clock",
        wrong=lambda facts: (
            f"the clock is read from {facts['clock_source']}" if facts["clock_source"] in _SLOW_CLOCKS else ""
        ),
        harm="reading it takes microseconds and its steps are coarse",
        cure="echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
)


_GIB = 2**30
_LITTLE_GIB = 4.0
_LITTLE_SWAP_BYTES = 64 * 2**20
_MUCH_DIRTY_BYTES = 256 * 2**20
_EAGER_SWAPPINESS = 10


def _numa_balancing(facts: Facts) -> str:
    domains = sum(bool(cpus) for cpus in facts["numa_nodes"])
    return "NUMA balancing is on" if facts["numa_balancing"] and domains > 1 else ""


def _page_cache(facts: Facts) -> str:
    total = facts["installed_bytes"]
    if facts["free_bytes"] > total / 10 or facts["cached_bytes"] < total / 2:
        return ""
    free, cached = (facts[name] / _GIB for name in ("free_bytes", "cached_bytes"))
    return f"the page cache holds {cached:.1f} GiB, {free:.1f} GiB are free"


_MEMORY_CHECKS = (
    Check(
        name="huge pages",
        needs=("thp",),
        reads=("sys/kernel/mm/transparent_hugepage/enabled",),
        good="madvise or always",
        wrong=lambda facts: "transparent huge pages are off" if facts["thp"] == "never" else "",
        harm="reads of weights miss the TLB",
        cure="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    Check(
        name="NUMA balancing",
        needs=("numa_balancing", "numa_nodes"),
        reads=("proc/sys/kernel/numa_balancing",),
        good="off where there are several nodes",
        wrong=_numa_balancing,
        harm="the kernel unmaps and moves pages while we measure",
        cure="sudo sysctl kernel.numa_balancing=0",
    ),
    Check(
        name="memory",
        needs=("memory_available_bytes",),
        reads=("proc/meminfo",),
        good=f"{_LITTLE_GIB:g} GiB or more to be had",
        wrong=lambda facts: (
            f"only {facts['memory_available_bytes'] / _GIB:.1f} GiB of memory free"
            if facts["memory_available_bytes"] < _LITTLE_GIB * _GIB
            else ""
        ),
        harm="the kernel reclaims pages while we measure, or ends the worker",
        cure="end other programs, or take a smaller slice (model.layers=…)",
    ),
    Check(
        name="page cache",
        needs=("free_bytes", "cached_bytes", "installed_bytes"),
        reads=("proc/meminfo",),
        good="a tenth of memory free, or a page cache below half of it",
        wrong=_page_cache,
        harm="weights find no huge pages and land on the wrong NUMA node",
        cure="sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
    ),
    Check(
        name="dirty pages",
        needs=("dirty_bytes",),
        reads=("proc/meminfo",),
        good=f"below {_MUCH_DIRTY_BYTES // 2**20} MiB",
        wrong=lambda facts: (
            f"{facts['dirty_bytes'] / 2**20:.0f} MiB wait to be written to disk"
            if facts["dirty_bytes"] > _MUCH_DIRTY_BYTES
            else ""
        ),
        harm="the kernel writes them while we measure",
        cure="sync",
    ),
    Check(
        name="swap",
        needs=("swap_used_bytes",),
        reads=("proc/meminfo",),
        good="unused",
        wrong=lambda facts: (
            f"{facts['swap_used_bytes'] / 2**20:.0f} MiB are swapped out"
            if facts["swap_used_bytes"] > _LITTLE_SWAP_BYTES
            else ""
        ),
        harm="what is needed again is read from disk",
        cure="sudo swapoff -a",
    ),
    Check(
        name="swappiness",
        needs=("swappiness", "swap_total_bytes"),
        reads=("proc/sys/vm/swappiness",),
        good=f"at most {_EAGER_SWAPPINESS} where there is swap",
        wrong=lambda facts: (
            f"swappiness {facts['swappiness']}"
            if facts["swap_total_bytes"] and facts["swappiness"] > _EAGER_SWAPPINESS
            else ""
        ),
        harm="weights that rest for a while may be swapped out",
        cure="sudo sysctl vm.swappiness=1",
    ),
)


MACHINE_CHECKS = (*_PROCESSOR_CHECKS, *_MEMORY_CHECKS)
