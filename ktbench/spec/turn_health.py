"""What may happen to the timed steps of a turn, judged from its `InterferenceCounters` in plain content."""

from __future__ import annotations

from collections.abc import Callable

from ktbench.spec.machine_health import Check, Facts

# Shares of the time of our cpus, and the least that ticks of 10 ms can tell from nothing.
_OTHERS, _STOLEN = 0.02, 0.01
_LEAST_S = 0.025
# Kernel threads alone preempt a pinned thread some tens of times a second.
_PREEMPTIONS_PER_CPU_S = 100
_FEWEST = 10
# A page found in memory costs about 1 us: a hundredth of the time.
_MINOR_FAULTS_PER_S = 10_000
_FEW_PAGES = 256
_CLOCK = 0.05


def _share(name: str, limit: float, words: str) -> Callable[[Facts], str]:
    def wrong(facts: Facts) -> str:
        share = facts[name] / (facts["seconds"] * facts["cpus"])
        return f"{share:.1%} {words}" if facts[name] >= _LEAST_S and share > limit else ""

    return wrong


def _count(name: str, words: str, per_s: Callable[[Facts], float], least: int) -> Callable[[Facts], str]:
    def wrong(facts: Facts) -> str:
        found = facts[name]
        return f"{found:,} {words}" if found >= least and found > per_s(facts) * facts["seconds"] else ""

    return wrong


def _clock(facts: Facts) -> str:
    """Against what is usual among the turns that it is compared with; one turn alone says nothing."""
    now, usual = facts["clock_hz"], facts.get("usual_clock_hz") or facts["clock_hz"]
    if abs(now / usual - 1) <= _CLOCK:
        return ""
    return f"cores ran at {now / 1e9:.2f} GHz, usually at {usual / 1e9:.2f}"


def _never(facts: Facts) -> float:
    return 0.0


TURN_CHECKS = (
    Check(
        name="others' work",
        needs=("others_s",),
        reads=("proc/stat",),
        good=f"below {_OTHERS:.0%} of the time of our cpus",
        wrong=_share("others_s", _OTHERS, "of the cpus' time went to other programs"),
        harm="they took cores, caches and memory bandwidth",
        cure="end what else runs: top -o %CPU",
    ),
    Check(
        name="preemption",
        needs=("preemptions",),
        reads=("proc/self/status",),
        good=f"below {_PREEMPTIONS_PER_CPU_S} a second and cpu",
        wrong=_count(
            "preemptions", "involuntary context switches", lambda facts: _PREEMPTIONS_PER_CPU_S * facts["cpus"], _FEWEST
        ),
        harm="a thread that waits for a core holds up all others at the next barrier",
        cure="end what else runs, or keep cores free of it (isolcpus=, cpuset)",
    ),
    Check(
        name="stolen time",
        needs=("stolen_s",),
        reads=("proc/stat",),
        good=f"below {_STOLEN:.0%}",
        wrong=_share("stolen_s", _STOLEN, "of the cpus' time was given to other machines by the hypervisor"),
        harm="steps stopped while another machine ran",
        cure="ask for a machine with dedicated cores",
    ),
    Check(
        name="quota stops",
        needs=("quota_stops",),
        reads=("proc/self/cgroup",),
        good="none",
        wrong=_count("quota_stops", "periods in which the CPU quota stopped threads", _never, 1),
        harm="threads were stopped in the middle of a step",
        cure="raise the quota (docker run --cpus, cpu.max), or start with taskset on as many cpus as it grants",
    ),
    Check(
        name="heat",
        needs=("thermal_stops",),
        reads=("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count",),
        good="none",
        wrong=_count("thermal_stops", "times a core was throttled for heat", _never, 1),
        harm="clocks dropped during the steps",
        cure="see to cooling and power limits: sudo turbostat --interval 1 shows clocks, temperatures and watts",
    ),
    Check(
        name="page faults",
        needs=("minor_faults",),
        reads=("proc/self/stat",),
        good=f"below {_MINOR_FAULTS_PER_S:,} a second",
        wrong=_count("minor_faults", "page faults", lambda facts: _MINOR_FAULTS_PER_S, _MINOR_FAULTS_PER_S // 100),
        harm="the steps were not warm: memory was handed out during them",
        cure="give turns more steps (workload.steps=…); on a machine short of memory see the warnings about it",
    ),
    Check(
        name="reads from disk",
        needs=("major_faults",),
        reads=("proc/self/stat",),
        good="none",
        wrong=_count("major_faults", "pages read from disk", _never, 1),
        harm="steps waited for the disk",
        cure="free memory, so that files stay cached: end other programs, take a smaller slice (model.layers=…)",
    ),
    Check(
        name="swapping",
        needs=("swapped_pages",),
        reads=("proc/vmstat",),
        good="none",
        wrong=_count("swapped_pages", "pages swapped in or out", _never, 1),
        harm="memory was short: steps waited for the disk",
        cure="sudo swapoff -a, and a smaller slice (model.layers=…) where memory is short",
    ),
    Check(
        name="moved pages",
        needs=("migrated_pages",),
        reads=("proc/vmstat",),
        good=f"fewer than {_FEW_PAGES}",
        wrong=_count("migrated_pages", "pages moved to another NUMA node", _never, _FEW_PAGES),
        harm="the kernel unmapped and copied pages during the steps",
        cure="sudo sysctl kernel.numa_balancing=0",
    ),
    Check(
        name="clock",
        needs=("clock_hz",),
        reads=("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq",),
        good=f"within {_CLOCK:.0%} of the median of a row's turns",
        wrong=_clock,
        harm="steps took longer or shorter with the clock",
        cure="sudo cpupower frequency-set -g performance, and turbo off",
    ),
)
