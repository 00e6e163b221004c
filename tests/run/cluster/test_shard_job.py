"""The process of a share: what of its job it answers for itself, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ktbench.run.cluster import shard_job
from ktbench.run.cluster.shards import is_wanted, shard_of, write_shard
from tests.run.cluster.test_shards import BASE, a_run
from tests.waiting import is_gone, until

ROOT = Path(__file__).parents[3]
# The share's own entry around a turn that ends when the share is withdrawn, or never.
SHARE = """#!{python}
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from ktbench.run.cluster import shard_job
def turn(folder):
    (folder / "turn.txt").write_text(f"{{os.getpid()}} {{os.getsid(0)}}")
    try:
        while {lasts}:
            time.sleep(0.02)
    except KeyboardInterrupt:
        (folder / "cut.txt").write_text("")
        raise
    (folder / "ended.txt").write_text("")
shard_job.carry_out_shard, sys.argv = turn, sys.argv[2:]  # as after -m
sys.exit(shard_job.main())
"""
# A job of a launcher's that runs a share.
JOB = """
import sys
from types import SimpleNamespace
from ktbench.run.cluster import shard_job
shard_job.sys = SimpleNamespace(executable=sys.argv[1])
shard_job.run_shard(SimpleNamespace(shard=sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A share that is asked for."""
    asked = tmp_path / "nodes/001-000"
    write_shard(shard_of(a_run((BASE,)), (BASE,), BASE.spec.measure, mixed=False), asked)
    return asked


def python_of(folder: Path, *, lasts: str) -> str:
    """What stands for Python where a share's process is started."""
    path = folder.parent / "share.py"
    path.write_text(SHARE.format(python=sys.executable, root=str(ROOT), lasts=lasts))
    path.chmod(0o755)
    return str(path)


def pid_of(folder: Path) -> int:
    """The share's process, which leads a session of its own."""
    until(lambda: (folder / "turn.txt").exists() and bool((folder / "turn.txt").read_text()))
    pid, session = map(int, (folder / "turn.txt").read_text().split())
    assert pid == session
    return pid


def interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, *, lasts: str, times: int) -> None:
    """Run a share as a job in this process that gets interrupts, the first in the middle of a turn."""
    monkeypatch.setattr(shard_job, "sys", SimpleNamespace(executable=python_of(folder, lasts=lasts)))

    waits = threading.main_thread().ident
    assert waits is not None

    def interrupt() -> None:
        """Of the thread that waits: a signal to the process may reach another, and then ends no system call."""
        pid_of(folder)
        signal.pthread_kill(waits, signal.SIGINT)
        for _ in range(times - 1):
            until(lambda: not is_wanted(folder))
            signal.pthread_kill(waits, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in what it starts
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            shard_job.run_shard(SimpleNamespace(shard=str(folder)))
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_withdraws_the_share_and_waits_for_the_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(folder, monkeypatch, lasts='(folder / "share.json").exists()', times=1)
    assert not is_wanted(folder)
    assert (folder / "ended.txt").exists()
    assert (folder / "output.txt").read_text() == ""
    assert "waiting for the current trial" in capsys.readouterr().err


def test_a_second_interrupt_ends_the_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, so that it can end its workers and what those have started."""
    interrupted(folder, monkeypatch, lasts="True", times=2)
    assert is_gone(pid_of(folder))
    assert (folder / "cut.txt").exists() and not (folder / "ended.txt").exists()
    assert (folder / "output.txt").read_text() == ""


def test_a_share_that_does_not_listen_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_job, "_TERMINATE_S", 0.1)
    interrupted(folder, monkeypatch, lasts="not signal.signal(2, signal.SIG_IGN) or True", times=2)
    assert is_gone(pid_of(folder))
    assert not (folder / "cut.txt").exists()


def test_a_share_leaves_to_its_job_what_a_cluster_says_and_ends_with_it(folder: Path) -> None:
    words = [sys.executable, "-c", JOB, python_of(folder, lasts="True"), str(folder)]
    job = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    pid = pid_of(folder)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        os.kill(pid, number)
    time.sleep(0.2)
    assert not is_gone(pid)
    assert is_wanted(folder)  # for the job that begins anew
    job.kill()
    job.wait()
    until(lambda: is_gone(pid))


def test_a_share_that_ends_from_outside_says_by_what(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shard_job, "sys", SimpleNamespace(executable=python_of(folder, lasts="os.kill(os.getpid(), 9)"))
    )
    said = shard_job.run_shard(SimpleNamespace(shard=str(folder)))
    assert said == "its process was ended by SIGKILL (see 001-000/output.txt)"
