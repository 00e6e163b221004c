"""How processors are set and shared when a run begins, as far as it spoils measurements."""

from __future__ import annotations

from ktbench.spec.core_layout import core_layout_at
from ktbench.spec.health.check import Check, Facts

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


PROCESSOR_CHECKS = (
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
        good="nobody but us",
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
