"""One timing at a time on a host, whoever holds it and however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktbench.host import timing_lock
from ktbench.host.timing_lock import Holder, timing, who_times
from ktbench.spec.errors import RequestError
from tests.command import python_output

HOLD = """
import sys
from pathlib import Path
from ktbench.host import timing_lock
timing_lock.lock_file = lambda: Path(sys.argv[1])
with timing_lock.timing("sweep", "decode-1"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "timing.lock"
    monkeypatch.setattr(timing_lock, "lock_file", lambda: path)
    return path


@pytest.fixture
def other(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def taken() -> bool:
    try:
        with timing("probe"):
            return True
    except RequestError:
        return False


def test_a_second_timing_is_refused_and_told_who_is_timing(other: subprocess.Popen[str]) -> None:
    with pytest.raises(RequestError) as refused, timing("probe"):
        pass
    line = str(refused.value)
    assert line.startswith("probe: this host is timing already: sweep of run decode-1 (process ")
    assert f"process {other.pid} of " in line and "since 20" in line and "\n" not in line
    with pytest.raises(RequestError, match="run decode-1"), timing("sweep", "another", on_wait=lambda holder: None):
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_frees_it(other: subprocess.Popen[str], number: int) -> None:
    assert not taken()
    other.send_signal(number)
    other.wait()
    assert taken()


def test_children_do_not_inherit_it(lock: Path) -> None:
    with timing("sweep"):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        held = [str(name.readlink()) for name in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert str(lock) not in held
    assert taken()
    child.communicate()


@pytest.mark.parametrize("which", [("decode-1", False), ("another", True)], ids=["of the same run", "for any"])
def test_who_is_to_wait_waits_for_its_turn(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, which: tuple[str, bool]
) -> None:
    monkeypatch.setattr(timing_lock, "_POLL_S", 0.01)
    told: list[Holder | None] = []

    def on_wait(holder: Holder | None) -> None:
        told.append(holder)
        assert other.stdin is not None
        threading.Thread(target=other.stdin.close).start()

    run, for_any = which
    assert who_times() is not None
    with timing("sweep", run, on_wait, for_any=for_any):
        assert [holder.pid for holder in told if holder] == [other.pid]
        assert not taken()
    assert taken()
    assert who_times() is None


def test_what_is_left_by_a_holder_says_nothing(lock: Path) -> None:
    lock.write_text("half a li")
    assert taken()
    assert lock.read_text() == ""


def test_the_note_of_a_holder_that_was_killed_names_nobody(other: subprocess.Popen[str], lock: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock.write_text(lock.read_text().replace(f'"pid": {other.pid}', f'"pid": {gone.pid}'))
    with pytest.raises(RequestError, match="another process of ktbench"), timing("sweep", "decode-1"):
        pass


def test_every_user_may_take_it(lock: Path) -> None:
    mask = os.umask(0o077)
    try:
        assert taken()
    finally:
        os.umask(mask)
    assert lock.stat().st_mode & 0o777 == 0o666


def test_a_lock_that_cannot_be_opened_is_said(lock: Path) -> None:
    lock.mkdir()
    with pytest.raises(RequestError, match="cannot be opened"), timing("sweep"):
        pass


def test_the_real_lock_does_not_depend_on_the_surroundings(tmp_path: Path) -> None:
    code = "from ktbench.host.timing_lock import lock_file; print(lock_file())"
    assert python_output(code) == python_output(code, TMPDIR=str(tmp_path), HOME=str(tmp_path))
