"""The table of what spoils measurements: each row finds what it is about, and only that."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from ktbench.spec.health import MACHINE_CHECKS, TRIAL_CHECKS, Facts, unknown, warnings
from ktbench.spec.system_metrics import Energy, InterferenceCounters

GIB = 2**30
QUIET: dict[str, Any] = {
    "governor": "performance",
    "energy_preference": "performance",
    "turbo": False,
    "thermal_stops": 0,
    "load": 0.1,
    "cores": 2,
    "others_running": 0,
    "foreign_siblings": [],
    "cpus": [0, 1],
    "cpu_quota": None,
    "stolen_share": 0.001,
    "core_to_core_ns": 60.0,
    "clock_source": "tsc",
    "thp": "madvise",
    "numa_balancing": False,
    "numa_nodes": [[0], [1]],
    "memory_available_bytes": 16 * GIB,
    "installed_bytes": 24 * GIB,
    "free_bytes": 12 * GIB,
    "cached_bytes": 2 * GIB,
    "dirty_bytes": 2**20,
    "swap_used_bytes": 0,
    "swap_total_bytes": GIB,
    "swappiness": 1,
}
CALM: dict[str, Any] = asdict(
    InterferenceCounters(
        seconds=2.0,
        cpus=2,
        preemptions=20,
        minor_faults=16,
        major_faults=0,
        others_s=0.02,
        stolen_s=0.01,
        quota_stops=0,
        thermal_stops=0,
        swapped_pages=0,
        migrated_pages=0,
        clock_hz=3e9,
        gpu_clock_hz=1.98e9,
        gpu_held_back_s=0.0,
    )
)
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"governor": "performance, powersave"}, "cpu governor performance, powersave", "cpupower frequency-set"),
    ({"energy_preference": "balance_power"}, "energy preference balance_power", "energy_performance_preference"),
    ({"turbo": True}, "turbo is on", "intel_pstate/no_turbo"),
    ({"thermal_stops": 1200}, "throttled for heat 1,200 times", "turbostat"),
    ({"load": 2.5}, "load 2.5 is above the 2 usable cores", "top"),
    ({"others_running": 3}, "3 other threads are running", "top"),
    ({"foreign_siblings": [4, 5]}, "cpus 4, 5 are others'", "smt/control"),
    ({"cpu_quota": 1.5}, "time of 1.5 cpus on 2", "taskset"),
    ({"stolen_share": 0.034}, "gave 3.4% of our time", "dedicated"),
    ({"core_to_core_ns": 9.6}, "share one physical core now (10 ns", "dedicated"),
    ({"clock_source": "hpet"}, "read from hpet", "current_clocksource"),
    ({"thp": "never"}, "huge pages are off", "transparent_hugepage/enabled"),
    ({"numa_balancing": True}, "NUMA balancing is on", "kernel.numa_balancing=0"),
    ({"memory_available_bytes": 2 * GIB}, "only 2.0 GiB of memory free", "model.layers"),
    ({"free_bytes": GIB, "cached_bytes": 20 * GIB}, "page cache holds 20.0 GiB, 1.0 GiB are free", "drop_caches"),
    ({"dirty_bytes": 2**29}, "512 MiB wait to be written", "sync"),
    ({"swap_used_bytes": 2**28}, "256 MiB are swapped out", "swapoff"),
    ({"swappiness": 60}, "swappiness 60", "vm.swappiness=1"),
]
BAD_TURNS = [
    ({"others_s": 0.2}, "5.0% of the cpus' time went to other programs"),
    ({"preemptions": 4000}, "4,000 involuntary context switches"),
    ({"stolen_s": 0.08}, "2.0% of the cpus' time was given to other machines"),
    ({"quota_stops": 1}, "1 periods in which the CPU quota stopped threads"),
    ({"thermal_stops": 2}, "2 times a core was throttled"),
    ({"minor_faults": 30_000}, "30,000 page faults"),
    ({"major_faults": 1}, "1 pages read from disk"),
    ({"swapped_pages": 9}, "9 pages swapped"),
    ({"migrated_pages": 300}, "300 pages moved"),
    ({"clock_hz": 2.4e9, "usual_clock_hz": 3e9}, "cores ran at 2.40 GHz, usually at 3.00"),
    ({"gpu_clock_hz": 1.2e9, "usual_gpu_clock_hz": 1.98e9}, "the GPU ran at 1.20 GHz, usually at 1.98"),
    ({"gpu_held_back_s": 0.5}, "lowered for power or heat for 0.5 s"),
]


def test_a_quiet_machine_and_a_calm_turn_have_no_warning() -> None:
    assert warnings(MACHINE_CHECKS, QUIET) == warnings(TRIAL_CHECKS, CALM) == ()
    assert unknown(MACHINE_CHECKS, QUIET) == unknown(TRIAL_CHECKS, CALM) == ()


@pytest.mark.parametrize(("bad", "said", "cure"), BAD)
def test_each_bad_fact_is_one_warning_with_its_cure(bad: dict[str, Any], said: str, cure: str) -> None:
    (warned,) = warnings(MACHINE_CHECKS, QUIET | bad)
    assert said in warned.text
    assert cure in warned.check.cure


@pytest.mark.parametrize(("bad", "said"), BAD_TURNS)
def test_each_disturbance_is_one_warning(bad: dict[str, Any], said: str) -> None:
    (warned,) = warnings(TRIAL_CHECKS, CALM | bad)
    assert said in warned.text


def test_every_check_is_tried_above() -> None:
    found = [
        {warned.check.name for bad in many for warned in warnings(checks, facts | bad)}
        for checks, facts, many in (
            (MACHINE_CHECKS, QUIET, [bad for bad, _, _ in BAD]),
            (TRIAL_CHECKS, CALM, [bad for bad, _ in BAD_TURNS]),
        )
    ]
    assert found == [{check.name for check in checks} for checks in (MACHINE_CHECKS, TRIAL_CHECKS)]
    every = (*MACHINE_CHECKS, *TRIAL_CHECKS)
    assert len({check.name for check in every}) == len(every)
    assert all(check.harm and check.cure and check.reads for check in every)


@pytest.mark.parametrize("facts", [{}, dict.fromkeys(QUIET), {"load": 0.5, "cores": 2}])
def test_what_is_not_known_is_not_judged(facts: Facts) -> None:
    assert warnings(MACHINE_CHECKS, facts) == ()
    assert {check.name for check in unknown(MACHINE_CHECKS, facts)} >= {"governor", "swap", "huge pages"}


@pytest.mark.parametrize(
    "fine", [{"numa_balancing": True, "numa_nodes": [[0, 1], []]}, {"swappiness": 60, "swap_total_bytes": 0}]
)
def test_settings_that_cannot_act_are_fine(fine: dict[str, Any]) -> None:
    assert warnings(MACHINE_CHECKS, QUIET | fine) == ()


def test_ticks_that_cannot_tell_from_nothing_are_no_warning() -> None:
    """In a turn of 20 ms one tick of 10 ms is a quarter of the time of two cpus, and nobody knows whose."""
    assert warnings(TRIAL_CHECKS, CALM | {"seconds": 0.02, "preemptions": 1, "others_s": 0.01, "stolen_s": 0.01}) == ()


def test_the_platforms_meter_counts_only_where_it_is_the_only_one() -> None:
    assert Energy(joules={"package-0": 3.0, "dram-0": 1.0, "psys": 9.0}, seconds=1.0).total_j == 4.0
    assert Energy(joules={"psys": 9.0}, seconds=1.0).total_j == 9.0
