"""Nothing is run where the kernel cannot restrict it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ktbench.eval.sandbox import restrictions, running
from ktbench.eval.sandbox.running import SandboxUnavailable, sandbox_mechanisms

# Takes one system call from this process and from its children, then tries to run a program.
WITHOUT = """
import ctypes, struct
from ktbench.eval.sandbox import restrictions
from ktbench.eval.sandbox.running import SandboxUnavailable
from ktbench.eval.sandbox.running import run_program, sandbox_mechanisms
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, {number}), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps), 32)
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code)), 16)
restrictions.prctl(restrictions.PR_SET_NO_NEW_PRIVS, 1)
restrictions.prctl(restrictions.PR_SET_SECCOMP, 2, header)
for run in (sandbox_mechanisms, lambda: run_program("open('/proc/self/mem'); print('ran')")):
    try:
        print(run())
    except SandboxUnavailable as error:
        print(error)
"""


def output_without(number: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(number=number)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_without_landlock_nothing_runs() -> None:
    line = "generated programs do not run here: Landlock, which denies files, is missing (Function not implemented); "
    assert output_without(444) == [line + "needs Linux 5.13 or later with landlock among its security modules"] * 2


def test_namespaces_are_a_second_barrier_only() -> None:
    powers, ended = output_without(272)
    assert "namespaces" not in powers
    assert "tried to open /proc/self/mem" in ended


def test_without_seccomp_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(restrictions, "deny_calls", lacking)
    with pytest.raises(OSError, match=r"seccomp, which denies the network, is missing \(Invalid argument\)"):
        restrictions._seccomp()


def test_on_another_processor_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restrictions.os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    with pytest.raises(OSError, match="and this is aarch64"):
        restrictions.restrict_process({"parent": 0, "cpu_s": 1, "address_bytes": 1, "output_bytes": 1, "readable": ()})


@pytest.fixture
def unseen() -> Iterator[None]:
    """A machine that was not looked at yet."""
    sandbox_mechanisms.cache_clear()
    yield
    sandbox_mechanisms.cache_clear()


@pytest.mark.usefixtures("unseen")
def test_elsewhere_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="is Linux's"):
        running.run_program("print()")


@pytest.mark.usefixtures("unseen")
def test_a_child_that_does_not_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.sys, "executable", "/bin/false")
    with pytest.raises(SandboxUnavailable, match="did not start"):
        running.run_program("print()")


@pytest.mark.usefixtures("unseen")
def test_where_a_harmless_program_does_not_end_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    child = running.run_child
    stopped = "slept for more than 12 s"
    monkeypatch.setattr(running, "run_child", lambda *job: replace(child(*job), stopped=stopped))
    with pytest.raises(SandboxUnavailable, match=f"generated programs do not run here: {stopped}"):
        running.run_program("print()")
