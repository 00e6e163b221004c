"""Runs gone on with: what is gathered first, on which machines, and what of the log is restored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.config import Request
from ktbench.host.timing_lock import timing
from ktbench.results import Log, Run, published_of, read_run
from ktbench.results.between_runs import require_one_machine
from ktbench.run import open_run as opening
from ktbench.run.cluster.shards import NODES, is_wanted, shard_of, write_shard
from ktbench.run.execute import execute
from ktbench.run.open_run import header_of, kept_of, open_run
from ktbench.run.request import CellPlan, cells_of, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Environment, Outcome, Record, TaskResult
from ktbench.spec.step.memory import MachineMemory
from tests.run.cluster.test_shards import turn

WORDS = ("model=tiny", "workload.prompt=8", "workload.steps=2", "sweep.arms=[base,+v]", "sweep.published=[fig13]")
LOGIN, NODE = (Environment(env_id=name, code_id="code") for name in ("login", "node"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request_of(*words: str) -> Request:
    return read_request([*WORDS, *words])


def begun(*records: Record) -> Path:
    """The folder of a run that was planned on the login node, with these records."""
    request = request_of("run_name=first")
    log, _ = open_run(request, cells_of(request), LOGIN, ["x"], here=False)
    log.append(LOGIN, *records)
    log.close()
    return log.path.parent


def resumed(machine: Environment, *words: str) -> tuple[Run, set[tuple[str, int]]]:
    """The run gone on with on a machine, and the turns that it need not measure."""
    request = request_of("resume=first", *words)
    log, previous = open_run(request, cells_of(request), machine, ["x"], here=True)
    log.close()
    assert previous is not None
    return previous, {where for where, record in kept_of(previous).items() if record.outcome.timed}


def on_node(folder: Path, *records: Record) -> Path:
    """What a share of all cells has left on its node."""
    run = read_run(folder)
    share = folder / NODES / "001-000"
    write_shard(shard_of(run, run.header.cells, run.header.measure, mixed=False), share)
    log = Log(share)
    log.append(run.header, NODE, *records)
    log.close()
    return share


BASE, FUSED, *OTHERS = cells_of(read_request(WORDS))
ROUND = tuple(turn(cell, 0, env="node") for cell in (BASE, FUSED, *OTHERS))


def test_a_run_that_nodes_have_measured_goes_on_here_on_their_machine_alone() -> None:
    begun(*ROUND)
    assert resumed(NODE)[1] == {(cell.key, 0) for cell in (BASE, FUSED, *OTHERS)}
    with pytest.raises(RequestError, match="resume=first: its machine was node, this is machine login; .*resume_chang"):
        resumed(LOGIN)
    assert len(resumed(LOGIN, "resume_changed=true")[1]) == len(ROUND)


def test_where_nothing_was_timed_the_machine_that_planned_the_run_goes_on() -> None:
    begun(turn(BASE, 0, Outcome.CRASHED, env="node"))
    assert resumed(LOGIN)[1] == set()
    with pytest.raises(RequestError, match="its machine was login, this is machine node"):
        resumed(NODE)


def test_turns_of_other_code_are_not_gone_on_with() -> None:
    begun(turn(BASE, 0, env="node"))
    with pytest.raises(RequestError, match="its code was code, this is code newer"):
        resumed(Environment(env_id="node", code_id="newer"))


def test_what_nodes_have_left_is_gathered_and_a_round_that_was_cut_short_measured_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktbench.run.progress._STATUS_EVERY_S", 0)
    folder = begun(ROUND[0])
    share = on_node(folder, *ROUND, turn(FUSED, 1, env="node"))
    run, kept = resumed(NODE)
    assert set(run.records) == {*ROUND, turn(FUSED, 1, env="node")} == set(read_run(folder).records)
    assert kept == {(record.cell, 0) for record in ROUND}
    assert not is_wanted(share)
    assert capsys.readouterr().err.count("  round  ") == len(ROUND)  # of the one that was there already, nothing
    assert resumed(NODE)[0].records == run.records


def test_of_a_run_that_was_never_spread_every_turn_is_kept() -> None:
    begun(ROUND[0])
    assert resumed(NODE)[1] == {(BASE.key, 0)}


def test_a_node_at_work_is_told_to_end_and_waited_for() -> None:
    share = on_node(begun(), *ROUND)
    writer = Log(share)
    with pytest.raises(RequestError, match="001-000: a node still runs it"):
        resumed(NODE)
    assert not is_wanted(share)
    writer.close()
    assert len(resumed(NODE)[1]) == len(ROUND)


def gone_on_with(*words: str) -> None:
    request = request_of("resume=first", *words)
    planned = CellPlan(cells=cells_of(request), unsupported={}, needed_bytes=0, memory=MachineMemory())
    execute(request, planned, ["python", "-m", "ktbench", "sweep"])


def test_a_node_that_times_on_this_host_is_told_to_end() -> None:
    """It holds the lock of the host, which would refuse whoever goes on before anybody had told it."""
    share = on_node(begun(), *ROUND)
    writer = Log(share)
    with timing("sweep", "first"):
        with pytest.raises(RequestError, match="001-000: a node still runs it"):
            gone_on_with()
        assert not is_wanted(share)
        writer.close()
        with pytest.raises(RequestError, match="this host is timing already"):
            gone_on_with()


def test_a_node_of_other_cells_or_of_a_sweep_that_goes_on_is_left_alone() -> None:
    folder = begun()
    share = on_node(folder, *ROUND)
    with pytest.raises(RequestError, match="first planned other cells"):
        gone_on_with("workload.prompt=9")
    sweep = Log(folder)
    with pytest.raises(RequestError, match="is writing to this run"):
        gone_on_with()
    sweep.close()
    assert is_wanted(share)


def test_a_machine_on_which_nothing_was_timed_has_not_measured() -> None:
    asked = TaskResult(
        cell=BASE.key, label=BASE.label, task="t", outcome=Outcome.CRASHED, provenance="measured", code_id="code",
        env_id="third", started="",
    )  # fmt: skip
    run = read_run(begun(*ROUND, turn(BASE, 1, Outcome.CRASHED, env="login")))
    ended = replace(asked, outcome=Outcome.OK)
    require_one_machine(replace(run, records=ROUND), run)  # a share that was lost is no other machine
    assert run.measured_on() == replace(run, task_results=(ended, asked)).measured_on() == {"node"}
    assert replace(run, task_results=(asked, ended)).measured_on() == {"node", "third"}


def test_numbers_published_since_are_none_that_were_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = published_of(header_of(request_of(), (BASE,), LOGIN, "r", []).parts)
    monkeypatch.setattr("ktbench.run.open_run.published_of", lambda parts: shipped[:-1])
    folder = begun(turn(BASE, 0, env="login"))
    monkeypatch.setattr("ktbench.run.open_run.published_of", lambda parts: shipped)
    resumed(LOGIN)
    assert read_run(folder).published == shipped[:-1]
    assert "published" not in capsys.readouterr().err


def test_published_numbers_that_the_log_has_lost_are_restored_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = begun() / "log.jsonl"
    shipped = published_of(header_of(request_of(), (BASE,), LOGIN, "r", []).parts)
    assert read_run(log.parent).published == shipped
    lines = log.read_bytes().splitlines(keepends=True)
    hurt = next(number for number, line in enumerate(lines) if b'"kind":"published"' in line)
    log.write_bytes(b"".join([*lines[:hurt], lines[hurt].replace(b'"value":', b'"valve":'), *lines[hurt + 1 :]]))
    assert len(read_run(log.parent).published) == len(shipped) - 1
    for _ in range(2):
        resumed(LOGIN)
        assert sorted(read_run(log.parent).published, key=lambda one: one.id) == sorted(shipped, key=lambda one: one.id)
        assert len(read_run(log.parent).published) == len(shipped)
    assert capsys.readouterr().err.count("written again: 1\n") == 1


def test_a_run_that_cannot_be_gone_on_with_is_free_for_others() -> None:
    folder = begun(*ROUND)
    with pytest.raises(RequestError):
        resumed(LOGIN)
    Log(folder).close()


def test_changes_that_no_commit_holds_are_kept_beside_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "read_changes", lambda: b"--- a\n")
    for number, machine in enumerate((LOGIN, replace(LOGIN, facts={"dirty": True}))):
        request = request_of(f"run_name=run{number}")
        log, _ = open_run(request, cells_of(request), machine, ["x"], here=False)
        log.close()
        kept = [file.read_bytes() for file in log.path.parent.glob("changes-code.diff")]
        assert kept == ([b"--- a\n"] if machine.facts else [])


def test_blocks_of_rounds_stay_as_they_were_planned() -> None:
    words = ("measure.reload_blocks=6", "measure.min_rounds=12")
    request = request_of("run_name=blocks", *words)
    open_run(request, cells_of(request), LOGIN, ["x"], here=False)[0].close()
    changed = request_of("resume=blocks", "measure.reload_blocks=6", "measure.min_rounds=18")
    with pytest.raises(RequestError, match="every 2 rounds, now every 3; set measure.min_rounds=12 again"):
        open_run(changed, cells_of(changed), LOGIN, ["x"], here=False)
