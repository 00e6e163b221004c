"""What spoils measurements, one row per check: of a machine's settings, and of the timed steps of a trial.

`doctor` and reports judge recorded facts by the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ktbench.spec.core_layout import core_layout_at

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing about a machine, or about what happened during a trial, that makes timings slower or noisier.

    `needs` names the facts that it is judged by, `reads` the files, or the interface, that they are read from. `is_bad`
    judges them; `finding` is the sentence for bad ones, filled in from `written`. `harm` is what that does to a
    measurement, `cure` the command or the step that ends it.
    """

    name: str
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    is_bad: Callable[[Facts], bool]
    finding: str
    harm: str
    cure: str

    def is_known(self, facts: Facts) -> bool:
        """Whether there are all facts that it takes to judge."""
        return all(facts.get(name) is not None for name in self.needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A check that found something wrong, and what."""

    check: Check
    text: str


def warnings(checks: Sequence[Check], facts: Facts) -> tuple[Finding, ...]:
    """The checks that find something wrong; those that lack facts find nothing."""
    bad = [check for check in checks if check.is_known(facts) and check.is_bad(facts)]
    return tuple(Finding(check=check, text=check.finding.format(**written(facts))) for check in bad)


def unknown(checks: Sequence[Check], facts: Facts) -> tuple[Check, ...]:
    """The checks that lack facts."""
    return tuple(check for check in checks if not check.is_known(facts))


def written(facts: Facts) -> dict[str, Any]:
    """The facts as findings write them, those unknown left out.

    Lists as words (`cpus`) and counted (`cpus_count`), bytes as `_mib` and `_gib` too, Hz as `_ghz`, and seconds of a
    trial as `_share` of the time of its cpus.
    """
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if value is None:
            continue
        stem, _, unit = name.rpartition("_")
        found[name] = value
        if isinstance(value, list | tuple):
            found |= {name: ", ".join(map(str, value)), f"{name}_count": len(value)}
        elif unit == "bytes":
            found |= {f"{stem}_mib": value / 2**20, f"{stem}_gib": value / _GIB}
        elif unit == "hz":
            found[f"{stem}_ghz"] = value / 1e9
        elif unit == "s" and "seconds" in facts:
            found[f"{stem}_share"] = _share(facts, name)
    return found


def _share(facts: Facts, name: str) -> float:
    return float(facts[name] / (facts["seconds"] * facts["cpus"]))


_GIB = 2**30
_SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")
_SAVING = ("power", "balance_power", "balance_performance")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")
_CPUFREQ = "sys/devices/system/cpu/cpu*/cpufreq"
_THROTTLED = "sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"
_CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
_END_OTHERS = "end what else runs: top -o %CPU"
_COOL = "see to cooling and power limits: sudo turbostat --interval 1 shows clocks, temperatures and watts"
_RAISE_QUOTA = "raise the quota (docker run --cpus, cpu.max), or start with taskset on as many cpus as it grants"
_DEDICATED = "ask for a machine with dedicated cores"
_STOLEN = 0.01  # share of our time
_LITTLE_GIB = 4.0
_LITTLE_SWAP_BYTES = 64 * 2**20
_MUCH_DIRTY_BYTES = 256 * 2**20
_EAGER_SWAPPINESS = 10


def _any_of(name: str, bad: tuple[str, ...]) -> Callable[[Facts], bool]:
    """One of the words, which differ where cpus differ, is a bad one."""
    return lambda facts: any(word in bad for word in facts[name].split(", "))


def _is_quota_below_cpus(facts: Facts) -> bool:
    quota = facts.get("cpu_quota")
    return quota is not None and quota < len(facts["cpus"])


def _fills_memory(facts: Facts) -> bool:
    """Less than a tenth of memory is free, and at least half of it is page cache."""
    total = facts["installed_bytes"]
    return bool(facts["free_bytes"] <= total / 10 and facts["cached_bytes"] >= total / 2)


MACHINE_CHECKS = (
    Check(
        name="governor",
        needs=("governor",),
        reads=(f"{_CPUFREQ}/scaling_governor",),
        is_bad=_any_of("governor", _SLOW_GOVERNORS),
        finding="cpu governor {governor}",
        harm="clocks rise late and drop between steps",
        cure="sudo cpupower frequency-set -g performance",
    ),
    Check(
        name="energy preference",
        needs=("energy_preference",),
        reads=(f"{_CPUFREQ}/energy_performance_preference",),
        is_bad=_any_of("energy_preference", _SAVING),
        finding="energy preference {energy_preference}",
        harm="the processor itself keeps clocks low to save energy",
        cure=f"echo performance | sudo tee /{_CPUFREQ}/energy_performance_preference",
    ),
    Check(
        name="turbo",
        needs=("turbo",),
        reads=("sys/devices/system/cpu/intel_pstate/no_turbo", "sys/devices/system/cpu/cpufreq/boost"),
        is_bad=lambda facts: facts["turbo"],
        finding="turbo is on",
        harm="clocks follow temperature and the number of busy cores",
        cure="echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo (other drivers: echo 0 | sudo tee "
        "/sys/devices/system/cpu/cpufreq/boost), or leave it on and compare only what was measured in turns",
    ),
    Check(
        name="thermal",
        needs=("thermal_stops",),
        reads=(_THROTTLED,),
        is_bad=lambda facts: facts["thermal_stops"] > 0,
        finding="cores were throttled for heat {thermal_stops:,} times since start-up",
        harm="clocks drop under load, the later the more",
        cure=_COOL,
    ),
    Check(
        name="load",
        needs=("load", "cores"),
        reads=("proc/loadavg",),
        is_bad=lambda facts: facts["load"] > facts["cores"],
        finding="load {load:.1f} is above the {cores} usable cores",
        harm="threads wait for a core",
        cure=_END_OTHERS,
    ),
    Check(
        name="others running",
        needs=("others_running",),
        reads=("proc/loadavg",),
        is_bad=lambda facts: facts["others_running"] > 0,
        finding="{others_running} other threads are running",
        harm="they take cores, caches and memory bandwidth",
        cure=_END_OTHERS,
    ),
    Check(
        name="shared cores",
        needs=("foreign_siblings",),
        reads=("sys/devices/system/cpu/cpu*/topology/thread_siblings_list",),
        is_bad=lambda facts: bool(facts["foreign_siblings"]),
        finding="cpus {foreign_siblings} are others' and share cores with ours",
        harm="who runs there takes up to half of our core",
        cure="ask for whole cores (taskset, cpuset), or switch hyperthreads off: "
        "echo off | sudo tee /sys/devices/system/cpu/smt/control",
    ),
    Check(
        name="cpu quota",
        needs=("cpus",),
        reads=("proc/self/cgroup",),
        is_bad=_is_quota_below_cpus,
        finding="a control group grants the time of {cpu_quota:g} cpus on {cpus_count}",
        harm="threads get stopped in the middle of a step",
        cure=_RAISE_QUOTA,
    ),
    Check(
        name="steal",
        needs=("stolen_share",),
        reads=("proc/stat",),
        is_bad=lambda facts: facts["stolen_share"] > _STOLEN,
        finding="the hypervisor gave {stolen_share:.1%} of our time to others since start-up",
        harm="steps stop while another machine runs on the core",
        cure=_DEDICATED,
    ),
    Check(
        name="core placement",
        needs=("core_to_core_ns",),
        reads=("the kernel extension's ping-pong",),
        is_bad=lambda facts: core_layout_at(facts["core_to_core_ns"]) == "same core",
        finding="the first two cores share one physical core now ({core_to_core_ns:.0f} ns from one to the other)",
        harm="both together compute like one",
        cure="ask for dedicated cores, or see with `python -m ktbench probe` how often it happens",
    ),
    Check(
        name="clock source",
        needs=("clock_source",),
        reads=(_CLOCK_SOURCE,),
        is_bad=lambda facts: facts["clock_source"] in _SLOW_CLOCKS,
        finding="the clock is read from {clock_source}",
        harm="reading it takes microseconds and its steps are coarse",
        cure=f"echo tsc | sudo tee /{_CLOCK_SOURCE}",
    ),
    Check(
        name="huge pages",
        needs=("thp",),
        reads=("sys/kernel/mm/transparent_hugepage/enabled",),
        is_bad=lambda facts: facts["thp"] == "never",
        finding="transparent huge pages are off",
        harm="reads of weights miss the TLB",
        cure="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    Check(
        name="NUMA balancing",
        needs=("numa_balancing", "numa_nodes"),
        reads=("proc/sys/kernel/numa_balancing",),
        is_bad=lambda facts: facts["numa_balancing"] and sum(map(bool, facts["numa_nodes"])) > 1,
        finding="NUMA balancing is on",
        harm="the kernel unmaps and moves pages while we measure",
        cure="sudo sysctl kernel.numa_balancing=0",
    ),
    Check(
        name="memory",
        needs=("memory_available_bytes",),
        reads=("proc/meminfo",),
        is_bad=lambda facts: facts["memory_available_bytes"] < _LITTLE_GIB * _GIB,
        finding="only {memory_available_gib:.1f} GiB of memory free",
        harm="the kernel reclaims pages while we measure, or ends the worker",
        cure="end other programs, or take a smaller slice (model.layers=…)",
    ),
    Check(
        name="page cache",
        needs=("free_bytes", "cached_bytes", "installed_bytes"),
        reads=("proc/meminfo",),
        is_bad=_fills_memory,
        finding="the page cache holds {cached_gib:.1f} GiB, {free_gib:.1f} GiB are free",
        harm="weights find no huge pages and land on the wrong NUMA node",
        cure="sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
    ),
    Check(
        name="dirty pages",
        needs=("dirty_bytes",),
        reads=("proc/meminfo",),
        is_bad=lambda facts: facts["dirty_bytes"] > _MUCH_DIRTY_BYTES,
        finding="{dirty_mib:.0f} MiB wait to be written to disk",
        harm="the kernel writes them while we measure",
        cure="sync",
    ),
    Check(
        name="swap",
        needs=("swap_used_bytes",),
        reads=("proc/meminfo",),
        is_bad=lambda facts: facts["swap_used_bytes"] > _LITTLE_SWAP_BYTES,
        finding="{swap_used_mib:.0f} MiB are swapped out",
        harm="what is needed again is read from disk",
        cure="sudo swapoff -a",
    ),
    Check(
        name="swappiness",
        needs=("swappiness", "swap_total_bytes"),
        reads=("proc/sys/vm/swappiness",),
        is_bad=lambda facts: facts["swap_total_bytes"] > 0 and facts["swappiness"] > _EAGER_SWAPPINESS,
        finding="swappiness {swappiness}",
        harm="weights that rest for a while may be swapped out",
        cure="sudo sysctl vm.swappiness=1",
    ),
)

# Of trials: shares of the time of our cpus, and the least that ticks of 10 ms can tell from nothing.
_OTHERS = 0.02
_LEAST_S = 0.025
# Kernel threads alone preempt a pinned thread some tens of times a second.
_PREEMPTIONS_PER_CPU_S = 100
_FEWEST = 10
# A page found in memory costs about 1 us: a hundredth of the time.
_MINOR_FAULTS_PER_S = 10_000
_FEW_PAGES = 256
_CLOCK = 0.05
_HELD_BACK = 0.05


def _takes(name: str, limit: float) -> Callable[[Facts], bool]:
    """So many CPU seconds are above a share of the cpus' time."""
    return lambda facts: facts[name] >= _LEAST_S and _share(facts, name) > limit


def _exceeds(name: str, per_s: Callable[[Facts], int], least: int) -> Callable[[Facts], bool]:
    """At least so many, and more than so many a second."""
    return lambda facts: facts[name] >= least and facts[name] > per_s(facts) * facts["seconds"]


def _is_unusual(clock: str) -> Callable[[Facts], bool]:
    """Against what is usual among the trials that it is compared with; one trial alone says nothing."""
    return lambda facts: abs(facts[clock] / (facts.get(f"usual_{clock}") or facts[clock]) - 1) > _CLOCK


# Judged from the `InterferenceCounters` of a trial in plain content.
TRIAL_CHECKS = (
    Check(
        name="others' work",
        needs=("others_s",),
        reads=("proc/stat",),
        is_bad=_takes("others_s", _OTHERS),
        finding="{others_share:.1%} of the cpus' time went to other programs",
        harm="they took cores, caches and memory bandwidth",
        cure=_END_OTHERS,
    ),
    Check(
        name="preemption",
        needs=("preemptions",),
        reads=("proc/self/status",),
        is_bad=_exceeds("preemptions", lambda facts: _PREEMPTIONS_PER_CPU_S * facts["cpus"], _FEWEST),
        finding="{preemptions:,} involuntary context switches",
        harm="a thread that waits for a core holds up all others at the next barrier",
        cure="end what else runs, or keep cores free of it (isolcpus=, cpuset)",
    ),
    Check(
        name="stolen time",
        needs=("stolen_s",),
        reads=("proc/stat",),
        is_bad=_takes("stolen_s", _STOLEN),
        finding="{stolen_share:.1%} of the cpus' time was given to other machines by the hypervisor",
        harm="steps stopped while another machine ran",
        cure=_DEDICATED,
    ),
    Check(
        name="quota stops",
        needs=("quota_stops",),
        reads=("proc/self/cgroup",),
        is_bad=lambda facts: facts["quota_stops"] > 0,
        finding="{quota_stops:,} periods in which the CPU quota stopped threads",
        harm="threads were stopped in the middle of a step",
        cure=_RAISE_QUOTA,
    ),
    Check(
        name="heat",
        needs=("thermal_stops",),
        reads=(_THROTTLED,),
        is_bad=lambda facts: facts["thermal_stops"] > 0,
        finding="{thermal_stops:,} times a core was throttled for heat",
        harm="clocks dropped during the steps",
        cure=_COOL,
    ),
    Check(
        name="page faults",
        needs=("minor_faults",),
        reads=("proc/self/stat",),
        is_bad=_exceeds("minor_faults", lambda facts: _MINOR_FAULTS_PER_S, _MINOR_FAULTS_PER_S // 100),
        finding="{minor_faults:,} page faults",
        harm="the steps were not warm: memory was handed out during them",
        cure="give trials more steps (workload.steps=…); on a machine short of memory see the warnings about it",
    ),
    Check(
        name="reads from disk",
        needs=("major_faults",),
        reads=("proc/self/stat",),
        is_bad=lambda facts: facts["major_faults"] > 0,
        finding="{major_faults:,} pages read from disk",
        harm="steps waited for the disk",
        cure="free memory, so that files stay cached: end other programs, take a smaller slice (model.layers=…)",
    ),
    Check(
        name="swapping",
        needs=("swapped_pages",),
        reads=("proc/vmstat",),
        is_bad=lambda facts: facts["swapped_pages"] > 0,
        finding="{swapped_pages:,} pages swapped in or out",
        harm="memory was short: steps waited for the disk",
        cure="sudo swapoff -a, and a smaller slice (model.layers=…) where memory is short",
    ),
    Check(
        name="moved pages",
        needs=("migrated_pages",),
        reads=("proc/vmstat",),
        is_bad=lambda facts: facts["migrated_pages"] >= _FEW_PAGES,
        finding="{migrated_pages:,} pages moved to another NUMA node",
        harm="the kernel unmapped and copied pages during the steps",
        cure="sudo sysctl kernel.numa_balancing=0",
    ),
    Check(
        name="clock",
        needs=("clock_hz",),
        reads=("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq",),
        is_bad=_is_unusual("clock_hz"),
        finding="cores ran at {clock_ghz:.2f} GHz, usually at {usual_clock_ghz:.2f}",
        harm="steps took longer or shorter with the clock",
        cure="sudo cpupower frequency-set -g performance, and turbo off",
    ),
    Check(
        name="GPU clock",
        needs=("gpu_clock_hz",),
        reads=("NVML",),
        is_bad=_is_unusual("gpu_clock_hz"),
        finding="the GPU ran at {gpu_clock_ghz:.2f} GHz, usually at {usual_gpu_clock_ghz:.2f}",
        harm="what it does took longer or shorter with the clock",
        cure="sudo nvidia-smi -lgc MHZ, with a clock that it keeps under load",
    ),
    Check(
        name="GPU held back",
        needs=("gpu_held_back_s",),
        reads=("NVML",),
        is_bad=lambda facts: facts["gpu_held_back_s"] > _HELD_BACK * facts["seconds"],
        finding="the GPU's clocks were lowered for power or heat for {gpu_held_back_s:.2g} s",
        harm="what it does took longer",
        cure="raise its power limit (sudo nvidia-smi -pl WATTS) or cool it; nvidia-smi -q -d PERFORMANCE says which",
    ),
)
