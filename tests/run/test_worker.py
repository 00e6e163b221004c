"""A worker process asked for timelines, and where it puts PyTorch's threads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ktbench.engine.loading.progress import Loading
from ktbench.engine.protocol import Unsupported
from ktbench.host.environment import environment
from ktbench.host.software import FoundPeer
from ktbench.host.topology import Core, read_topology
from ktbench.run import worker as worker_module
from ktbench.run import worker_process
from ktbench.run.child import OomCount, killed_reason, oom_count
from ktbench.run.messages import OpenSession, RecordIds
from ktbench.run.worker import SERVE, Worker, WorkerDied, serve_command
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.timeline import Timeline
from tests.tiny import tiny_cell, tiny_spec
from tests.waiting import is_gone, is_stopped, until

ROOT = Path(__file__).parents[2]
FUSED = tiny_cell("+v", avx512=True)


LOADED = pytest.mark.usefixtures("loaded_children")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded_children: None) -> Iterator[Callable[[str], Worker]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = []

    def start_with(script: str) -> Worker:
        command = (sys.executable, str(Path(__file__).parent / "fake_worker.py"), json.dumps({"+v": script}))
        opened = OpenSession(cells=(FUSED,), ids=RecordIds(code_id="code", env_id="env", worker_session="here"))
        started.append(Worker.start(opened, tmp_path / "worker.log", 60, command))
        return started[-1]

    yield start_with
    for worker in started:
        worker.stop()


def test_a_timeline_comes_back_as_it_was_and_turns_go_on(start: Callable[[str], Worker]) -> None:
    worker = start("")
    timeline = worker.timeline(FUSED, 10)
    assert isinstance(timeline, Timeline)
    assert (timeline.provenance, timeline.step_s) == ("measured", 0.003)
    assert [(span.resource, span.begin_s, span.layer) for span in timeline.spans] == [
        ("device", 0.0, 0),
        ("host", 0.001, 0),
    ]
    assert worker.trial(FUSED, 0, 10).outcome is Outcome.OK


@pytest.mark.parametrize(("script", "why"), [("unsupported", "no such feature"), ("no timeline", "keeps no time")])
def test_a_timeline_that_there_cannot_be_says_why(start: Callable[[str], Worker], script: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        start(script).timeline(FUSED, 10)


OPENED = OpenSession(cells=(FUSED,), ids=RecordIds(code_id="code", env_id="env", worker_session="here"))


@LOADED
def test_a_worker_says_how_far_it_is_until_it_is_ready(tmp_path: Path) -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    seen: list[Loading] = []
    cell, ids = tiny_cell("base"), RecordIds(code_id=environment().code_id, env_id="env", worker_session="here")
    worker = Worker.start(OpenSession(cells=(cell,), ids=ids), tmp_path / "worker.log", 120, SERVE, seen.append)
    try:
        assert worker.trial(cell, 0, 60).outcome is Outcome.OK
    finally:
        worker.stop()
    assert seen
    assert all(0 <= one.done_bytes <= one.total_bytes for one in seen)


@LOADED
def test_a_worker_that_was_edited_since_the_run_began_measures_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    opened = OpenSession(cells=(tiny_cell("base"),), ids=OPENED.ids)  # "code" stands for that of then
    with pytest.raises(WorkerDied, match="the code of ktbench was changed") as died:
        Worker.start(opened, tmp_path / "worker.log", 120, SERVE)
    assert died.value.outcome is Outcome.CRASHED


SAYS_AND_WAITS = """
import os, sys, time
from ktbench.engine.loading.progress import Loading
from ktbench.run.messages import Response, encode_line
report = Loading(doing="packing", stage="packing", done_bytes=1, total_bytes=2)
os.write(int(sys.argv[1]), encode_line(Response(loading=report)))
time.sleep(600)
"""


@LOADED
def test_an_interrupt_while_loading_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    start = worker_module._start_process

    def started(*arguments: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*arguments))
        return processes[-1]

    def interrupt(_loading: Loading) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_module, "_start_process", started)
    with pytest.raises(KeyboardInterrupt):
        Worker.start(OPENED, tmp_path / "worker.log", 60, (sys.executable, "-c", SAYS_AND_WAITS), interrupt)
    assert processes[0].poll() is not None


REPORTS_TWICE = (
    SAYS_AND_WAITS.replace("time.sleep(600)", "")
    + """
os.write(int(sys.argv[1]), encode_line(Response(loading=report)))
os.write(int(sys.argv[1]), encode_line(Response()))
"""
)


@LOADED
def test_a_worker_that_goes_on_loading_is_not_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is 50 s further at each report."""
    late = 0.0

    def on_loading(_loading: Loading) -> None:
        nonlocal late
        late += 50.0

    monkeypatch.setattr(worker_module, "monotonic", lambda: time.monotonic() + late)
    Worker.start(OPENED, tmp_path / "worker.log", 60, (sys.executable, "-c", REPORTS_TWICE), on_loading).stop()
    assert late == 100.0


@LOADED
def test_a_worker_that_hangs_after_a_report_is_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the report on, a minute passes between two looks at the clock."""
    reported = False
    minutes = count(1)

    def on_loading(_loading: Loading) -> None:
        nonlocal reported
        reported = True

    monkeypatch.setattr(worker_module, "monotonic", lambda: time.monotonic() + (60 * next(minutes) if reported else 0))
    with pytest.raises(WorkerDied) as died:
        Worker.start(OPENED, tmp_path / "worker.log", 60, (sys.executable, "-c", SAYS_AND_WAITS), on_loading)
    assert reported
    assert died.value.outcome is Outcome.TIMEOUT


def test_a_worker_that_is_stopped_while_it_loads_is_timed_out_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    start = worker_module._start_process

    def stopped(*arguments: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*arguments))
        until(lambda: is_stopped(processes[0].pid))
        return processes[0]

    monkeypatch.setattr(worker_module, "_start_process", stopped)
    monkeypatch.setattr(worker_module, "_TERMINATE_S", 0.05)
    with pytest.raises(WorkerDied, match=r"loading took more than 0.05 s") as died:
        Worker.start(OPENED, tmp_path / "worker.log", 0.05, ("sh", "-c", "kill -STOP $$", "sh"))
    assert died.value.outcome is Outcome.TIMEOUT
    assert is_gone(processes[0].pid)


def test_a_crash_while_tracing_is_an_outcome(start: Callable[[str], Worker]) -> None:
    with pytest.raises(WorkerDied, match="the trace: the worker was ended by SIGSEGV") as died:
        start("crash").timeline(FUSED, 10)
    assert died.value.outcome is Outcome.CRASHED


def test_with_roles_apart_pytorch_stays_on_the_device_roles_cores() -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    program = """
import os
from ktbench.engine.roles import reach
from ktbench.host.topology import read_topology
from ktbench.run.worker_process import prepare_host
from tests.tiny import tiny_spec
cpus = read_topology().core_cpus
if len(cpus) < 2: print("one core"); raise SystemExit
prepare_host(cpus, [tiny_spec(roles="split", device_threads=1)])
import torch
torch.ones(2048, 2048).sum()
print(torch.get_num_threads(), os.sched_getaffinity(0) == {cpus[0]})
from ktbench._kernels import ThreadPool
with reach(cpus): ThreadPool(list(cpus[1:]), 0)
print(os.sched_getaffinity(0) == {cpus[0]})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stdout == "one core\n":
        pytest.skip("one core: the roles share it")
    assert done.stdout.split() == ["1", "True", "True"], done.stderr


def test_roofs_are_those_of_the_cell_with_most_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that differ in their threads share a worker: the share of a roof must not depend on their order."""
    opened: list[int] = []
    monkeypatch.setattr(worker_process, "open_roofs", lambda cpus: opened.append(len(cpus)))
    topology = replace(read_topology(), cores=tuple(Core(node=0, package=0, cpus=(cpu,)) for cpu in range(4)))
    for threads in ((1, 3), (3, 1), (2, None)):
        worker_process._roofs([tiny_spec(threads=one) for one in threads], topology)
    assert opened == [3, 3, 4]


def test_our_engine_and_what_is_installed_here_run_under_this_interpreter() -> None:
    assert serve_command(tiny_spec()) == SERVE
    assert serve_command(tiny_spec(system="transformers")) == SERVE


def test_a_bare_environment_finds_everything_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(worker_module, "find_peer", lambda peer, spec: FoundPeer(python=python, version="1"))
    command = serve_command(tiny_spec(system="kt-kernel", phase="layer", peer=PeerSpec(python=python)))
    assert command[0] == python != sys.executable
    imports = command[2].replace("sys.exit(main())", "import torch, msgspec; print(main.__module__, sys.executable)")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the tests run from a checkout that is not installed
    done = subprocess.run([python, "-c", imports], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["ktbench.run.worker_process", python], done.stderr


V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 7\noom 5\noom_kill 4\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/job/1\n", {"job/1/memory.events": V2}, 4),
        ("0::/elsewhere\n", {"memory.events": V2}, 4),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.oom_control": V1}, 3),
        ("4:memory:/outside\n", {"memory/memory.oom_control": V1}, 3),
        ("0::/\n", {}, 9),
        ("nonsense", {}, 9),
        ("4:memory:/old\n", {"memory/old/memory.oom_control": "under_oom 0\n"}, 9),
    ],
)
def test_the_nearest_counter_is_read(tmp_path: Path, own: str, files: dict[str, str], kills: int) -> None:
    for name, text in {**files, "own": own, "vmstat": "pgfault 1\noom_kill 9\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_count(tmp_path, tmp_path / "own", tmp_path / "vmstat").kills == kills


def test_nothing_is_guessed_where_nobody_counts(tmp_path: Path) -> None:
    unknown = oom_count(tmp_path, tmp_path / "own", tmp_path / "vmstat")
    assert unknown.kills is None
    no_memory, by = killed_reason(unknown, unknown)
    assert not no_memory and "does not report which" in by


def test_an_ending_is_put_down_to_memory_only_where_the_counter_moved() -> None:
    before, after = (OomCount(kills=kills, where="in this cgroup") for kills in (1, 2))
    assert killed_reason(before, after) == (
        True,
        "the kernel because memory ran out (it counted an oom_kill in this cgroup)",
    )
    assert killed_reason(before, before) == (
        False,
        "SIGKILL from outside: the kernel counted no oom_kill in this cgroup",
    )
