"""Sweeps spread over stand-ins for nodes: what is gathered, what a lost node costs, what resumes."""

from __future__ import annotations

import errno
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ktbench.cli import main
from ktbench.config import Launch, launcher
from ktbench.host import timing_lock
from ktbench.results import Log, NotKept, Run, StoreError, read_run
from ktbench.run.cluster import shard_job, spread
from ktbench.run.cluster.shard_job import carry_out_shard, run_shard
from ktbench.run.cluster.shards import NODES, is_wanted, read_shard, shard_of, withdraw, write_shard
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Environment, Outcome
from ktbench.spec.wire import to_plain
from tests.sim.testbed import testbed
from tests.tiny import tiny_cell
from tests.waiting import until

WORDS = (
    "sweep", "model=tiny", "workload.prompt=8", "workload.steps=2", "sweep.arms=[base,+v]", "workload.batch=1,2,3",
    "machine=box.yaml", "hydra/launcher=submitit_local",
)  # fmt: skip
HERE = Environment(env_id="env", code_id="code")
Node = Callable[[Path], None]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a machine of one's own, where launchers run jobs one after the other in this process."""
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "box", "title": "A box"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "is_installed", lambda name: True)
    monkeypatch.setattr(Launch, "value", lambda self, key: None)
    monkeypatch.setattr("ktbench.cli.show.write_report", lambda run, documents: [])
    monkeypatch.setattr("ktbench.sim.records._MOST_WITH_SENSITIVITY", 0)
    for module in ("ktbench.host.environment", "ktbench.run.execute", "ktbench.run.cluster.spread"):
        monkeypatch.setattr(f"{module}.environment", lambda: HERE)
    launched(monkeypatch, carry_out_shard)
    return tmp_path


def launched(monkeypatch: pytest.MonkeyPatch, node: Node) -> list[Path]:
    """Let nodes carry out shares so; the folders of the shares that were launched."""
    folders: list[Path] = []

    def launch_jobs(launch: Launch, folder: Path, task: object, jobs: Sequence[str]) -> list[str]:
        folders.extend(map(Path, jobs))
        return [_said(node, Path(job)) for job in jobs]

    monkeypatch.setattr(spread, "launch_jobs", launch_jobs)
    return folders


def _said(node: Node, folder: Path) -> str:
    try:
        node(folder)
    except RequestError as error:
        return str(error)
    return ""


def the_run(home: Path) -> Run:
    return read_run(home / "runs/first")


def outcomes(run: Run) -> list[tuple[str, Outcome]]:
    latest = {record.cell: record for record in run.records}
    return [(cell.label, latest[cell.key].outcome) for cell in run.header.cells]


def test_a_spread_sweep_is_the_same_run_as_one_on_one_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ktbench.run.progress._STATUS_EVERY_S", 0)  # another test may have shown a line just now
    assert main([*WORDS, "run_name=first"]) == 0
    out, err = capsys.readouterr()
    assert "3 of 3 shards are launched with submitit_local" in err
    assert "  simulated  " in err
    assert main([*WORDS[:-1], "run_name=alone"]) == 0
    alone = read_run(home / "runs/alone")
    assert {r.cell: r.samples_s for r in the_run(home).records} == {r.cell: r.samples_s for r in alone.records}
    assert the_run(home).header.cells == alone.header.cells
    assert capsys.readouterr().out.split("Ids:")[0] == out.split("Ids:")[0].replace("first", "alone")


def test_shares_are_as_many_as_asked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = launched(monkeypatch, carry_out_shard)
    assert main([*WORDS, "spread.jobs=2", "run_name=first"]) == 0
    assert [folder.name for folder in folders] == ["001-000", "001-001"]
    assert sorted(len(read_run(folder).header.cells) for folder in folders) == [2, 4]


def test_a_node_that_fails_costs_its_cells_and_resuming_runs_what_lacks(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_once(folder: Path) -> None:
        if folder.name == "001-001":
            raise RequestError("the node went away")
        carry_out_shard(folder)

    launched(monkeypatch, fails_once)
    assert main([*WORDS, "run_name=first"]) == 4
    first = the_run(home)
    assert [outcome for _, outcome in outcomes(first)] == ["OK", "OK", "CRASHED", "CRASHED", "OK", "OK"]
    assert {record.why for record in first.records if not record.outcome.timed} == {"the node went away"}
    folders = launched(monkeypatch, fails_once)
    assert main([*WORDS, "resume=first"]) == 0
    assert [folder.name for folder in folders] == ["002-000"]
    second = the_run(home)
    assert second.records[: len(first.records)] == first.records and len(second.records) == len(first.records) + 2
    assert {outcome for _, outcome in outcomes(second)} == {Outcome.OK}
    folders = launched(monkeypatch, fails_once)
    assert main([*WORDS, "resume=first"]) == 0
    assert folders == []
    assert "0 of 3 shards are launched with" in capsys.readouterr().err


def test_a_launcher_that_loses_a_job_costs_the_cells_of_that_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_GRACE_S", 0.0)

    def loses_one(launch: Launch, folder: Path, task: object, jobs: Sequence[str]) -> list[str]:
        for job in jobs[1:]:
            carry_out_shard(Path(job))
        raise RuntimeError("Job 17 was killed\n")

    monkeypatch.setattr(spread, "launch_jobs", loses_one)
    assert main([*WORDS, "run_name=first"]) == 4
    assert [outcome for _, outcome in outcomes(the_run(home))] == ["CRASHED", "CRASHED", *["OK"] * 4]
    assert the_run(home).records[-1].why == "submitit_local lost its job: Job 17 was killed"


def test_an_interrupt_withdraws_shares_and_keeps_what_was_measured(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(launch: Launch, folder: Path, task: object, jobs: Sequence[str]) -> list[str]:
        carry_out_shard(Path(jobs[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(spread, "launch_jobs", interrupted)
    assert main([*WORDS, "run_name=first"]) == 130
    assert len(the_run(home).records) == 2
    assert [read_shard(folder) for folder in (home / "runs/first" / NODES).iterdir()] == [None] * 3
    assert "resume=first continues" in capsys.readouterr().err
    launched(monkeypatch, carry_out_shard)
    assert main([*WORDS, "resume=first"]) == 0
    assert len(the_run(home).records) == 6


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotKept("log.jsonl: No space left on device"), 4),
        (StoreError("log.jsonl:3: schema 1, this version reads 2"), 2),
    ],
)
def test_a_sweep_that_cannot_gather_withdraws_its_shares_and_says_why(
    error: Exception, code: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works, measured = spread.gather, threading.Event()

    def fails(*words: object) -> object:
        if threading.current_thread() is threading.main_thread():
            return works(*words)  # type: ignore[arg-type]
        measured.wait()
        raise error

    def launch_jobs(launch: Launch, folder: Path, task: object, jobs: Sequence[str]) -> list[str]:
        carry_out_shard(Path(jobs[0]))
        measured.set()
        for _ in range(3000):
            if not any(is_wanted(Path(job)) for job in jobs):
                return [""] * len(jobs)
            time.sleep(0.01)
        raise AssertionError("shares were not withdrawn")

    monkeypatch.setattr(spread, "_POLL_S", 0.01)
    monkeypatch.setattr(spread, "gather", fails)
    monkeypatch.setattr(spread, "launch_jobs", launch_jobs)
    assert main([*WORDS, "run_name=first"]) == code
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == f"ktbench: {error}"
    assert err.count(f"{error}; shards are withdrawn") == 1 and "Traceback" not in err
    assert len(the_run(home).records) == 2  # what the first share had measured by then


def test_a_look_at_what_nodes_measure_that_fails_costs_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works, failed = spread._size, list[str]()

    def fails_at_first(folder: Path) -> int:
        if len(failed) < 3:
            failed.append(folder.name)
            raise OSError(errno.ESTALE, "Stale file handle", "log.jsonl")
        return works(folder)

    def launch_jobs(launch: Launch, folder: Path, task: object, jobs: Sequence[str]) -> list[str]:
        for count, job in enumerate(jobs, start=1):
            carry_out_shard(Path(job))
            until(lambda: len(the_run(home).records) == 2 * count)  # noqa: B023
        return [""] * len(jobs)

    monkeypatch.setattr(spread, "_POLL_S", 0.01)
    monkeypatch.setattr(spread, "_size", fails_at_first)
    monkeypatch.setattr(spread, "launch_jobs", launch_jobs)
    assert main([*WORDS, "run_name=first"]) == 0
    assert capsys.readouterr().err.count("log.jsonl: Stale file handle; progress of the nodes is shown once") == 1


def test_a_record_counts_over_what_was_there_when_it_was_asked_for_whatever_the_clocks_say(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise RequestError("the node went away")

    launched(monkeypatch, fails)
    assert main([*WORDS, "run_name=first"]) == 4

    class Slow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2001, 1, 1, tzinfo=tz)

    monkeypatch.setattr("ktbench.sim.records.datetime", Slow)
    launched(monkeypatch, carry_out_shard)
    assert main([*WORDS, "resume=first"]) == 0


def test_what_nodes_left_is_gone_on_with_without_a_launcher(home: Path) -> None:
    assert main([*WORDS, "run_name=first"]) == 0
    whole = the_run(home)
    log = home / "runs/first/log.jsonl"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b'"record"' not in line))
    assert main([*WORDS[:-1], "resume=first"]) == 0
    assert sorted(the_run(home).records, key=lambda one: one.cell) == sorted(whole.records, key=lambda one: one.cell)


def test_what_a_node_left_is_gathered_and_a_busy_one_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = launched(monkeypatch, carry_out_shard)
    assert main([*WORDS, "run_name=first"]) == 0
    log = home / "runs/first/log.jsonl"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b'"record"' not in line))
    writer = Log(folders[0])
    assert main([*WORDS, "resume=first"]) == 2
    assert "a node still runs it" in capsys.readouterr().err
    writer.close()
    assert main([*WORDS, "resume=first"]) == 0
    assert len(folders) == 3 and len(the_run(home).records) == 6


def test_a_share_goes_on_where_its_log_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(folder: Path) -> None:
        carry_out_shard(folder)
        carry_out_shard(folder)  # as a launcher does that puts a job back into the queue

    folders = launched(monkeypatch, again)
    assert main([*WORDS, "run_name=first"]) == 0
    assert [len(read_run(folder).records) for folder in folders] == [2, 2, 2]


def test_a_line_that_a_node_lost_is_named_and_its_turn_measured_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loses_one(folder: Path) -> None:
        carry_out_shard(folder)
        log = folder / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"round":0', b'"round":7', 1))

    launched(monkeypatch, loses_one)
    assert main([*WORDS, "spread.jobs=1", "run_name=first"]) == 4
    assert len(the_run(home).records) == 5
    assert capsys.readouterr().err.count(": left out; a trial recorded there is measured again on resuming") == 1
    assert main([*WORDS[:-1], "resume=first"]) == 0
    assert "001-000/log.jsonl:3: the line was changed" in capsys.readouterr().err
    assert len(the_run(home).latest()) == 6


@pytest.mark.parametrize("content", [b"", b'{"crc":17', b'{"crc":17,"schema":2}\n'])
def test_a_node_whose_plan_is_not_there_has_nothing_to_bring_in(
    content: bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS[:-1], "run_name=first"]) == 0
    node = home / "runs/first" / NODES / "001-000"
    node.mkdir(parents=True)
    (node / "log.jsonl").write_bytes(content)
    capsys.readouterr()
    assert main([*WORDS[:-1], "resume=first"]) == 0
    assert capsys.readouterr().err.count("nodes/001-000/log.jsonl:1: the line was changed") == content.endswith(b"\n")


def test_a_node_that_wrote_as_another_version_does_is_not_passed_over(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "run_name=first"]) == 0
    log = home / "runs/first" / NODES / "001-000" / "log.jsonl"
    _, _, checked = log.read_bytes().splitlines()[-1].partition(b",")
    checked = checked.replace(b'"schema":2', b'"schema":1')
    log.write_bytes(log.read_bytes() + b'{"crc":%d,%b\n' % (zlib.crc32(checked), checked))
    assert main([*WORDS, "resume=first"]) == 2
    assert "schema 1, this version reads 2" in capsys.readouterr().err


def test_a_withdrawn_share_ends_after_the_turn_under_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def withdrawn(folder: Path) -> None:
        asked = iter([True])  # until the first turn has ended
        monkeypatch.setattr(shard_job, "is_wanted", lambda folder: next(asked, False))
        carry_out_shard(folder)

    folders = launched(monkeypatch, withdrawn)
    assert main([*WORDS, "run_name=first", "spread.jobs=1"]) == 4
    assert len(read_run(folders[0]).records) == 1
    withdraw(folders[0])
    with pytest.raises(RequestError, match="withdrawn before it began"):
        carry_out_shard(folders[0])
    assert "it was withdrawn, or this node does not see" in run_shard(SimpleNamespace(shard=str(folders[0])))


def test_a_share_that_is_withdrawn_while_it_waits_for_its_turn_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.run.cluster.test_shards import a_run

    run, cell = a_run((tiny_cell(),)), tiny_cell()
    write_shard(shard_of(run, (cell,), cell.spec.measure, mixed=False), tmp_path / "nodes/001-000")
    monkeypatch.setattr("ktbench.run.execute.measure_cells", lambda *_: pytest.fail("was measured"))
    with ExitStack() as other:
        other.enter_context(timing_lock.timing("sweep", run.header.run))

        def sleep(seconds: float) -> None:
            withdraw(tmp_path / "nodes/001-000")
            other.close()

        monkeypatch.setattr(timing_lock.time, "sleep", sleep)
        with pytest.raises(shard_job.ShardWithdrawn, match="001-000 was withdrawn while it waited"):
            carry_out_shard(tmp_path / "nodes/001-000")


def test_other_code_and_other_machines_are_not_mixed_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Environment(env_id="env", code_id="other")
    monkeypatch.setattr("ktbench.host.environment.environment", lambda: here)
    assert main([*WORDS, "run_name=first"]) == 4
    assert {record.why.partition(";")[0][-23:] for record in the_run(home).records} == {"this node is code other"}


def test_what_was_measured_elsewhere_is_not_gone_on_with() -> None:
    from tests.run.cluster.test_shards import a_run, turn

    cell = tiny_cell()
    asked = shard_job.Shard(header=a_run((cell,)).header, environments=(), kept=(), mixed=False, home="")
    known = (turn(cell, 0, env="there"),)
    with pytest.raises(RequestError, match="its machine was there, this node is machine env"):
        shard_job.require_alike(asked, Environment(env_id="env", code_id="code"), known)


@pytest.mark.parametrize(("n_jobs", "here", "fine"), [(1, True, True), (2, True, False), (2, False, True)])
def test_joblib_times_one_cell_at_a_time(
    n_jobs: int, here: bool, fine: bool, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(Launch, "value", lambda self, key: n_jobs)
    launch, cells = Launch(name="joblib", words=(), jobs=None), [tiny_cell()]
    if not here:
        assert main([*WORDS, "run_name=first"]) == 0
        cells = list(the_run(home).header.cells)
    if fine:
        assert spread.one_at_a_time(launch, cells).words == (("hydra.launcher.n_jobs=1",) if here else ())
        return
    with pytest.raises(RequestError, match="timing with two cells at once on one host is refused"):
        spread.one_at_a_time(launch, cells)


def test_a_sweep_is_refused_while_another_times_and_nothing_is_written(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in WORDS[:-1] if not word.startswith("machine")]
    with timing_lock.timing("sweep", "long"):
        assert main([*words, "run_name=second"]) == 2
        assert main([*WORDS[:-1], "run_name=simulated"]) == 0  # which times nothing
    assert "this host is timing already: sweep of run long (process " in capsys.readouterr().err
    assert not (home / "runs/second").exists()
