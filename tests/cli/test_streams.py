"""Output streams that are closed, narrow, full or a terminal, and words that no log can hold.

A command ends with its code and no traceback.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ktbench import cli
from ktbench.cli.streams import Ended, PlainText, ending_signals, exit_code_of
from ktbench.spec.errors import one_line, printable
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`ktbench` in a command for a shell is the program."""
    line = command.replace("ktbench", f"{sys.executable} -m ktbench")
    env = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": "/tmp", **environ}
    return subprocess.run(["sh", "-c", line], cwd="/tmp", env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_dev_null(closed: str) -> None:
    done = shell(f"ktbench help {closed}; echo $?")
    assert done.stdout.splitlines()[-1:] == ["0"]
    assert "Traceback" not in done.stderr
    refused = shell(f"ktbench sing {closed}; echo $?")
    assert refused.stdout.splitlines()[-1:] == ["2"]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_letters_that_an_encoding_lacks_are_escapes(encoding: str) -> None:
    done = shell("ktbench plan model=tiny model.layers=2 +ablation=decode", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print("± — ü \udcff", file=PlainText(narrow), flush=True)
    assert b"\\u2014" in narrow.buffer.getvalue() or encoding == "cp1252"


@pytest.mark.parametrize("words", [("run", "model=tiny"), ("plan",), ("sweep", "+ablation=decode"), ("eval",)])
def test_a_path_that_is_not_utf8_is_refused_before_a_run_begins(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/model-\xff"
    Path(os.fsdecode(folder)).mkdir()
    command = [sys.executable, "-m", "ktbench", *words, b"model.path=" + folder]
    env = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == 2 and done.stdout == b""
    assert b"is not UTF-8" in done.stderr and done.stderr.count(b"\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("report", "r\udcff"), ("compare", "a", "\udcff"), ("\ud800",)])
def test_a_name_that_is_not_utf8_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_or_a_closed_pipe_ends_with_its_code() -> None:
    assert shell("ktbench help >/dev/full; echo $?").stdout == "4\n"
    assert shell("ktbench help 2>&1 >/dev/full").stderr.count("\n") <= 1
    assert shell("(ktbench help; echo $? >&2) | true").stderr.strip() in ("0", "141")


def test_no_control_character_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sing\x1b[2J\nktbench: done\r"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said[:-1].isprintable()
    with redirect_stdout(out := io.StringIO()):
        PlainText(out).write("\x1b]0;title\x07 name\t\x9b31m\n")
    assert out.getvalue() == "\\x1b]0;title\\x07 name\t\\x9b31m\n"
    assert one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b" and printable("ü—\n") == "ü—\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_signals_that_end_a_command_are_interrupts_with_their_own_code(number: int, code: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Ended) as raised, ending_signals():
        os.kill(os.getpid(), number)
    assert exit_code_of(raised.value) == code and exit_code_of(KeyboardInterrupt()) == 130
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_an_interrupt_where_python_ignores_exceptions_is_not_lost(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as ended, ending_signals():
        Interrupted()
        until(lambda: False)
    assert exit_code_of(ended.value) == 128 + number
    assert capsys.readouterr().err == ""


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_machine_without_proc_is_one_line(tmp_path: Path) -> None:
    command = (
        f"mount -t tmpfs none /proc && {sys.executable} -m ktbench plan model=tiny model.layers=2 +ablation=decode"
    )
    env = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(tmp_path)}
    words = ["unshare", "-rm", "sh", "-c", command]
    try:
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if "ktbench" not in done.stderr:
        pytest.skip("file systems cannot be mounted here")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "/proc/meminfo" in done.stderr
