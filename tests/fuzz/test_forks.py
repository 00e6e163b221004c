"""The fuzzer itself: every kind of fault is seen, none is seen where there is none, and inputs are made small."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import Process
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.child import CPU_S, OUTPUT, UNCAUGHT, WRITES, Reached, Result, run_child, watched
from tests.fuzz.forks import fault_of
from tests.fuzz.server import wait
from tests.fuzz.words import all_changed, changed


def result(**changes: Any) -> Result:
    plain = {"code": 0, "by": "", "cpu_s": 0.1, "wall_s": 0.1, "output": "", "writes": ()}
    return Result(**plain | changes)  # type: ignore[arg-type]


TRACE = 'Traceback (most recent call last):\n  File "/x/ktbench/cli/plan.py", line 3, in run\nKeyError: 1\n'


@pytest.mark.parametrize(
    "fine",
    [
        result(),
        result(code=2, output="ktbench: no\n"),
        result(code=2, output="a\nb\nc\n"),
        result(code=3),
        result(code=4, output="a row says why\n" * 9),
        result(cpu_s=4.0),
    ],
)
def test_what_is_accepted_or_refused_is_no_fault(fine: Result) -> None:
    assert fault_of(fine) is None


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (result(code=UNCAUGHT, output=TRACE), "traceback, KeyError in cli/plan.py:run"),
        (result(code=4, output=TRACE), "traceback, KeyError in cli/plan.py:run"),
        (result(code=1), "exit code 1"),
        (result(code=-11, by="SIGSEGV"), "SIGSEGV in ?"),
        (result(code=-24, by="SIGXCPU", cpu_s=CPU_S), "hang in ?"),
        (result(code=-9, by="SIGKILL", cpu_s=CPU_S + 1), "hang in ?"),
        (result(code=-9, by="patience"), "hang in ?"),
        (result(code=2), "refused in no line"),
        (result(code=2, output="a\nb\nc\nd\n"), "refused in many lines"),
        (result(code=2, output="no\n", cpu_s=2.5), "refused late"),
        (result(writes=("/tmp/x",)), "writes outside of the run folder"),
        (result(code=2, output="no\n", writes=("/tmp/x",)), "writes outside of the run folder"),
    ],
)
def test_every_kind_of_fault_is_named(wrong: Result, kind: str) -> None:
    fault = fault_of(wrong)
    assert fault is not None
    assert fault.kind == kind


def ended(carry_out: Callable[[Any], int], home: Path) -> tuple[int, str, str]:
    """Exit code or signal, output, and writes of a child."""
    home.mkdir()
    if not (pid := os.fork()):
        run_child(carry_out, None, home.resolve())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = [(home / name).read_text() if (home / name).exists() else "" for name in (OUTPUT, WRITES)]
    return code, texts[0], texts[1]


def within(act: Callable[[], object]) -> Callable[[Any], int]:
    def carry_out(_: Any) -> int:
        with watched():
            act()
        return 0

    return carry_out


def raising(_: Any) -> int:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("carry_out", "code"),
    [
        (lambda _: 3, 3),
        (raising, UNCAUGHT),
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV) or 0, -signal.SIGSEGV),
        (lambda _: len(bytearray(64 << 30)), UNCAUGHT),
        (lambda _: sys.exit(5), UNCAUGHT),
    ],
)
def test_how_a_child_ends_is_seen(carry_out: Callable[[Any], int], code: int, tmp_path: Path) -> None:
    assert ended(carry_out, tmp_path / "home")[0] == code


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        (lambda: Path("runs/a").write_text(""), False),
        (lambda: Path("runs/a/b").mkdir(parents=True), False),
        (lambda: Path("tmp/a").touch(), False),
        (lambda: Path(__file__).read_text(), False),
        (lambda: Path("a").write_text(""), True),
        (lambda: Path("runs/../a").mkdir(), True),
        (lambda: Path("runsx").mkdir(), True),
        (lambda: Path("../a").touch(), True),
        (lambda: Path("tmp/a").symlink_to("/etc/passwd") or Path("tmp/a").chmod(0o644), True),
        (lambda: Path(OUTPUT).rename("runs/a"), True),
        (lambda: Path(OUTPUT).unlink(), True),
        (lambda: socket.socket().connect_ex(("127.0.0.1", 9)), True),
        (lambda: __import__("pickle").loads(b"cos\ngetpid\n."), True),
    ],
)
def test_what_is_written_elsewhere_is_seen(act: Callable[[], object], seen: bool, tmp_path: Path) -> None:
    _, _, writes = ended(within(act), tmp_path / "home")
    assert bool(writes) == seen


def _until_used(cpu_s: float) -> None:
    while time.process_time() < cpu_s:
        pass


@pytest.mark.parametrize(("act", "ends"), [(lambda: _until_used(2.0), True), (signal.pause, False)])
def test_only_what_sleeps_without_end_hangs(act: Callable[[], object], ends: bool) -> None:
    """A process that has no CPU for long, on a busy machine, does not."""
    child = Process(target=act, daemon=True)
    child.start()
    assert child.pid is not None
    assert wait(child.pid, patience_s=0.9) == ends
    child.kill()
    child.join()


def test_nothing_is_measured(tmp_path: Path) -> None:
    def start() -> None:
        with pytest.raises(Reached):
            __import__("subprocess").run(["true"], check=True)

    assert ended(within(start), tmp_path / "home")[0] == 0


def test_content_is_changed_at_a_place() -> None:
    content = {"a": [1, {"b": 2}], "c": 3}
    assert changed(content, [0, 1, 0], "set", 9) == {"a": [1, {"b": 9}], "c": 3}
    assert changed(content, [1], "drop", None) == {"a": [1, {"b": 2}]}
    assert changed(content, [3], "wrap", None) == {"a": [1, {"b": 2}], "c": [3]}
    assert changed(content, [1], "double", "d") == content | {"d": 3}
    assert all_changed(content, [[[0], "drop", None], [[0], "set", 1]]) == {"c": 1}
    assert content == {"a": [1, {"b": 2}], "c": 3}
