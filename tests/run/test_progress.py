"""Lines of progress while a sweep runs: names that tell cells apart, and each cell shown as done once."""

from __future__ import annotations

import io
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.engine.loading.progress import Loading, LoadProgress
from ktbench.results.stopping import SweepCriterion
from ktbench.run.progress import (
    LoadingLine,
    RoundProgress,
    _Console,
    cell_names,
    clear_status,
    names_in_part,
    quiet_progress,
    say,
    status,
    trial_progress,
    warn,
)
from ktbench.spec.cells import plan_cells
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.sweep import SweepSpec
from tests.report.synthetic import Arm, Store
from tests.tiny import tiny_spec

ARMS = (
    Arm(label="base", noise=0.001),
    Arm(label="+v", step_ms=50.0, noise=0.2),
    Arm(label="+m", outcome=Outcome.CRASHED, why="killed by signal 9"),
    Arm(label="+v+m", outcome=Outcome.UNSUPPORTED, why="this processor has no AMX"),
)


def shown_rounds(folder: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each of eight rounds printed."""
    monkeypatch.setattr("sys.stderr", stream)
    run = Store(arms=ARMS, rounds=8, drift=0.0).write(folder)
    cells, names = run.header.cells, cell_names(run.header.cells)
    criterion = SweepCriterion(cells, run.header.parts, MeasureSpec(), names)
    rounds, trials, printed = RoundProgress(cells, names, MeasureSpec()), trial_progress(cells), []
    for number in range(8):
        before = len(stream.getvalue())
        records = [record for record in run.records if record.round == number]
        for record in records:
            trials(record)
        criterion.add(records)
        rounds.round_ended(criterion)
        printed.append(stream.getvalue()[before:])
    return printed


def test_in_a_file_a_cell_has_one_line_once_it_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.run.progress._CONSOLE", _Console(said_s=math.inf))
    printed = [text.splitlines() for text in shown_rounds(tmp_path, io.StringIO(), monkeypatch)]
    assert [len(lines) for lines in printed] == [1, 0, 0, 0, 0, 2, 0, 0]
    assert "CRASHED: killed by signal 9" in printed[0][0]
    assert [line.split()[0] for line in printed[5]] == ["base", "base"]
    assert all("ms/step ±" in line and "6 rounds" in line for line in printed[5])


def test_on_a_terminal_what_is_open_is_one_line_that_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktbench.run.progress.get_terminal_size", lambda: os.terminal_size((60, 24)))
    printed = shown_rounds(tmp_path, Terminal(), monkeypatch)
    assert sum(text.count("\n") for text in printed) == 3
    lines = [part for text in printed for part in text.split("\r\x1b[K") if part]
    assert sum("of 5 cells done" in line for line in lines) == 8
    assert all(len(line) < 60 for line in lines if "\n" not in line)


def test_now_and_then_a_file_has_a_line_of_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ktbench.run.progress.monotonic", clock)
    monkeypatch.setattr("ktbench.run.progress._CONSOLE", _Console())
    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    for clock.now in (0.0, 30.0, 59.0, 61.0, 130.0):
        status(f"{clock.now:g} s")
    assert stream.getvalue().splitlines() == ["0 s", "61 s", "130 s"]


def test_quiet_progress_leaves_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    with quiet_progress():
        say("one")
        status("two")
        LoadingLine(stream).show(report(1.0))
        clear_status()
        warn("three")
    say("four")
    assert [part for part in stream.getvalue().split("\r\x1b[K") if part] == ["three\n", "four\n"]


def test_a_stream_that_cannot_hold_a_letter_gets_it_as_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, encoding="latin-1", errors="backslashreplace"))
    say("±1 → 2")
    assert raw.getvalue() == b"\xb11 \\u2192 2\n"


def test_what_varies_is_named_and_nothing_else() -> None:
    ladder = SweepSpec(arms=("base", "+v"))
    assert list(names_in_part(plan_cells(tiny_spec(), ladder)).values()) == ["base", "+v", "base (A/A)"]
    axes = replace(ladder, axes={"workload.prompt": (8, 16)}, control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), axes)).values()) == [
        "base (prompt 8)",
        "+v (prompt 8)",
        "base (prompt 16)",
        "+v (prompt 16)",
    ]


def test_a_precision_that_arms_name_is_not_said_twice() -> None:
    worded = SweepSpec(arms=("base", "+v int8"), control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), worded)).values()) == ["base", "+v int8"]
    varied = SweepSpec(arms=("+v",), baseline="+v", axes={"precision": ("bf16", "int8")}, control=False)
    names = names_in_part(plan_cells(tiny_spec(), varied))
    assert list(names.values()) == ["+v (precision bf16)", "+v (precision int8)"]


def test_the_same_cell_in_two_parts_has_two_names() -> None:
    sweep = SweepSpec(arms=("base",))
    cells = [*plan_cells(tiny_spec(), sweep, "one"), *plan_cells(tiny_spec(), sweep, "two")]
    assert list(cell_names(cells).values()) == ["one base", "one base (A/A)", "two base", "two base (A/A)"]
    assert set(cell_names(cells)) == {cell.key for cell in cells}


def test_a_precision_that_brings_another_along_is_named_once() -> None:
    values = tuple({"precision": name, "device_precision": name} for name in ("bf16", "q8_0"))
    sweep = SweepSpec(arms=("llama.cpp", "+v+l"), baseline="llama.cpp", axes={"precision": values}, control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), sweep)).values()) == [
        "llama.cpp (precision bf16)",
        "+v+l (precision bf16)",
        "llama.cpp (precision q8_0)",
        "+v+l (precision q8_0)",
    ]


GIB = 2**30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def report(done_gib: float, doing: str = "packing layer 12/48", stage: str = "packing") -> Loading:
    return Loading(doing=doing, stage=stage, done_bytes=int(done_gib * GIB), total_bytes=32 * GIB)


def test_on_a_terminal_one_line_is_replaced_and_gone_at_the_end() -> None:
    clock, terminal = Clock(), Terminal()
    line = LoadingLine(terminal, clock)
    for clock.now, done in ((0.0, 0.0), (10.0, 8.0), (20.0, 16.0)):
        line.show(report(done))
    line.clear()
    written = terminal.getvalue()
    assert "\n" not in written
    shown = [part for part in written.split("\r\x1b[K") if part]
    assert shown[1] == "  packing layer 12/48, 8.0 of 32.0 GiB, 0:30 left"
    assert shown[2].endswith("16.0 of 32.0 GiB, 0:20 left")
    assert written.endswith("\r\x1b[K")


def test_elsewhere_there_is_a_line_every_ten_seconds_at_most() -> None:
    clock, stream = Clock(), io.StringIO()
    line = LoadingLine(stream, clock)
    for second in range(36):
        clock.now = float(second)
        line.show(report(second / 2))
    line.clear()
    assert [text.split(",")[1] for text in stream.getvalue().splitlines()] == [
        f" {done:.1f} of 32.0 GiB" for done in (5, 10, 15)
    ]


def test_time_left_is_that_of_the_stage_and_none_before_it_began() -> None:
    clock, terminal = Clock(), Terminal()
    line = LoadingLine(terminal, clock)
    for clock.now, one in (
        (0.0, report(0, "reading", "reading")),
        (1.0, report(32, "reading", "reading")),
        (5.0, report(0.0)),
        (3605.0, report(16.0)),
    ):
        line.show(one)
    shown = [part.strip() for part in terminal.getvalue().split("\r\x1b[K") if part]
    assert [text.rpartition(", ")[2] for text in shown] == [
        "0.0 of 32.0 GiB",
        "0:00 left",
        "0.0 of 32.0 GiB",
        "1:00:00 left",
    ]


def test_a_reader_that_is_gone_is_no_error() -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    line = LoadingLine(Closed())
    line.show(report(1.0))
    line.clear()


def test_reports_are_a_few_a_second_and_the_stages_bytes_are_counted_anew() -> None:
    clock, seen = Clock(), list[Loading]()
    progress = LoadProgress(seen.append, clock)
    for number, _ in enumerate(progress.over("reading", {str(i): 10 for i in range(100)})):
        clock.now = number * 0.05
    assert 15 <= len(seen) <= 25
    assert (seen[0].done_bytes, seen[-1].total_bytes) == (10, 1000)
    progress.begin("packing", 50)
    clock.now += 1
    progress.at(1, 5)
    progress.reach(20)
    assert seen[-1] == Loading(doing="packing layer 1/5", stage="packing", done_bytes=20, total_bytes=50)
