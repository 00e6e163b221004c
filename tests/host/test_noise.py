"""Counters of the kernel before and after, and what is made of their difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.host.noise import Usage, cpu_ticks, disturbance, others_running, own_usage, read_clock_hz, read_counters
from tests.host.conftest import CPU, Grow

COUNTS = st.lists(st.integers(0, 2**40), min_size=8, max_size=10)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def usage(cpu_s: float, preemptions: int = 0) -> Usage:
    return Usage(cpu_s=cpu_s, preemptions=preemptions, minor_faults=1, major_faults=0)


def stat(*rows: list[int]) -> str:
    return "\n".join(["cpu  1 2 3", *(f"cpu{n} {' '.join(map(str, row))}" for n, row in enumerate(rows)), "intr 5 0"])


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(COUNTS, min_size=1, max_size=12), wanted=st.sets(st.integers(0, 14), min_size=1))
def test_ticks_of_the_cpus_asked_for_and_no_others(rows: list[list[int]], wanted: set[int]) -> None:
    expected = [row[:8] for number, row in enumerate(rows) if number in wanted]
    assert cpu_ticks(stat(*rows), wanted) == expected


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="cpu01 9-x\n"))
def test_any_other_text_has_no_ticks_or_whole_rows_of_them(text: str) -> None:
    assert all(len(row) == 8 and min(row) >= 0 for row in cpu_ticks(text, range(3)))


def test_others_have_what_neither_we_nor_nobody_had(grow: Grow) -> None:
    idle = [0, 0, 0, 100, 0, 0, 0, 0]
    root = grow({"proc/stat": stat(idle, idle), "proc/vmstat": "pswpin 1\npswpout 2\nnuma_pages_migrated 7\nx y z"})
    before = read_counters((0, 1), root, lambda: usage(1.0, 5), lambda: 10.0)
    grow({"proc/stat": stat([200, 10, 20, 100, 5, 1, 4, 30], idle), "proc/vmstat": "pswpin 3\npswpout 2"})
    after = read_counters((0, 1), root, lambda: usage(1.0 + 200 * TICK_S, 9), lambda: 12.5)
    seen = disturbance(before, after, (0, 1), clock_hz=2e9)
    assert (seen.seconds, seen.cpus, seen.preemptions, seen.clock_hz) == (2.5, 2, 4, 2e9)
    assert seen.others_s == pytest.approx(35 * TICK_S)
    assert seen.stolen_s == pytest.approx(30 * TICK_S)
    assert (seen.swapped_pages, seen.migrated_pages, seen.thermal_stops, seen.quota_stops) == (2, None, None, None)


def test_ticks_coarser_than_our_own_time_leave_others_nothing(grow: Grow) -> None:
    root = grow({"proc/stat": stat([0] * 8)})
    before, after = (read_counters((0,), root, lambda s=s: usage(s)) for s in (0.0, 0.004))
    assert disturbance(before, after, (0,)).others_s == 0.0


def test_a_kernel_that_says_nothing_leaves_what_the_process_knows(tmp_path: Path) -> None:
    now = read_counters((0,), tmp_path)
    seen = disturbance(now, now, (0,))
    assert (seen.others_s, seen.stolen_s, seen.swapped_pages) == (None, None, None)
    assert (seen.preemptions, seen.minor_faults) == (0, 0)


def test_own_usage_counts_on() -> None:
    before, _, after = own_usage(), bytearray(2**24), own_usage()
    assert after.minor_faults >= before.minor_faults
    assert after.cpu_s >= before.cpu_s


@pytest.mark.parametrize(
    ("loadavg", "others"), [("0.1 0.2 0.3 4/90 5", 3), ("0 0 0 0/9 5", 0), ("0.1", None), ("", None)]
)
def test_who_else_runs(grow: Grow, loadavg: str, others: int | None) -> None:
    assert others_running(grow({"proc/loadavg": loadavg})) == others


def test_the_clock_is_the_mean_of_the_cpus_that_say(grow: Grow) -> None:
    root = grow({f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "3000000", f"{CPU}/cpu2/cpufreq/scaling_cur_freq": "1000000"})
    assert read_clock_hz((0, 1, 2), root) == 2e9
    assert read_clock_hz((1,), root) is None
