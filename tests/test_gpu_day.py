"""The day on a GPU machine: stages that ended are not repeated, those that did not are named, all is packed."""

from __future__ import annotations

import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.gpu.day import PARTS, Day, Stage, pack, run


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day(out=tmp_path, limit_s=60, layers=4, minutes=1.0, dry=True)


def stage(name: str, code: str, most_s: int = 30, sweep: str | None = None) -> Stage:
    return Stage(name=name, command=(sys.executable, "-c", code), most_s=most_s, run=sweep)


def test_what_ended_is_not_repeated_and_what_failed_is(day: Day) -> None:
    count = f"open({str(day.out / 'count')!r}, 'a').write('x')"
    stages = [stage("good", count), stage("bad", f"{count}; raise SystemExit(3)")]
    assert run(day, stages, time.monotonic()) == ["bad"]
    assert run(day, stages, time.monotonic()) == ["bad"]
    assert (day.out / "count").read_text() == "xxx"


def test_a_sweep_with_cells_in_doubt_ended(day: Day) -> None:
    assert run(day, [stage("sweep", "raise SystemExit(4)", sweep="sweep")], time.monotonic()) == []
    assert run(day, [stage("test", "raise SystemExit(4)")], time.monotonic()) == ["test"]


def test_a_stage_whose_time_is_over_is_asked_to_end(day: Day) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(print('records are kept')))\n"
    slow = stage("slow", f"{code}while True: time.sleep(0.05)", most_s=1)
    assert run(day, [slow], time.monotonic()) == ["slow"]
    assert "records are kept" in (day.out / "logs" / "slow.log").read_text()


def test_without_time_nothing_begins(day: Day) -> None:
    assert run(day, [stage("late", "1")], time.monotonic() - day.limit_s) == ["late"]
    assert not (day.out / "logs").exists()


def test_logs_are_packed(day: Day) -> None:
    run(day, [stage("one", "print('seen')"), stage("two", "raise SystemExit(1)")], time.monotonic())
    with tarfile.open(pack(day, ["no_such_run"])) as packed:
        names = packed.getnames()
    assert {"logs/one.log", "logs/two.log"} <= set(names)


@pytest.mark.parametrize("dry", [True, False])
def test_names_are_unique_and_only_a_real_day_asks_for_a_device(dry: bool, tmp_path: Path) -> None:
    day = Day(out=tmp_path, limit_s=60, layers=4, minutes=1.0, dry=dry)
    stages = [one for part in PARTS for one in day.stages(part)]
    assert len({one.name for one in stages}) == len(stages)
    assert any("engine.device=cuda" in one.command for one in stages) == (not dry)
