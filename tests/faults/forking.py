"""Commands and their subprocesses as forks of this process: as real ones, but with everything loaded already."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self
from unittest.mock import patch

from ktbench import cli
from ktbench.host import crossovers, roofs, timing_lock
from ktbench.run import progress, worker_process

_MODULES = (
    *(
        f"ktbench.{name}"
        for name in ("run.worker_process", "run.eval_process", "run.export", "run.record", "run.cluster.spread")
    ),
    *(f"ktbench.engine.{name}" for name in ("load", "generate", "gguf.export", "loading.network", "gguf.writing")),
    *(f"ktbench.{name}" for name in ("eval.session", "report.figures.draw", "report.web.page")),
    *("torch", "transformers.models.qwen3_moe.modeling_qwen3_moe", "matplotlib.backends.backend_pdf"),
    *("matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg", "ktbench.engine.synthetic"),
)
ENDED_S = 15.0  # in which nothing that a killed command has started may be left
BUFFER_BYTES = 1 << 26  # that is read to find how fast memory is; a real one takes a second to fill
_Popen = subprocess.Popen


@cache
def load_everything() -> None:
    """Load what commands and their children load. Nothing is computed: threads of OpenMP do not survive forks.

    PyTorch is loaded with the rest, so a fork's threads are not bound to cpus, which it would have to be told before.
    What is timed is not what commands here are about: the loops of kernels and the limits of memory are timed quickly.
    """
    for verb in cli.VERBS:
        cli.module_of(verb)
    for module in _MODULES:
        import_module(module)
    worker_process.bind_openmp = lambda _cpus: None
    crossovers._BUDGET_S, crossovers._LEAST_ROUNDS, crossovers._TOKENS = 0.0, 1, (1, 4)  # type: ignore[misc]
    crossovers._EXPERTS, crossovers._HIDDEN, crossovers._INTERMEDIATE = 2, 256, 256  # type: ignore[misc]
    roofs.Roofs = partial(roofs.Roofs, buffer_bytes=BUFFER_BYTES)  # type: ignore[assignment,misc]


class Child:
    """A fork that is waited for as for a `subprocess.Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """As that of `subprocess.Popen`."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As that of `subprocess.Popen`."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("child", timeout or 0.0)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode


class ForkedPopen(Child):
    """Stands for `subprocess.Popen` of `python -m ktbench.…`, with the arguments that ktbench gives it."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        sys.stdout.flush(), sys.stderr.flush()
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            output = write_out if how["stdout"] == subprocess.PIPE else _number(how["stdout"])
            kept = (*how.get("pass_fds", ()), int(os.environ["ALIVE"]))
            _become(command, read_in, output, _number(how["stderr"]), kept)
        os.close(read_in), os.close(write_out)
        self.stdin: IO[bytes] = os.fdopen(write_in, "wb", buffering=how.get("bufsize", -1))
        self.stdout: IO[bytes] = os.fdopen(read_out, "rb")


def _number(file: Any) -> int:
    return file if isinstance(file, int) else file.fileno()


def _popen(command: Sequence[str], *args: Any, **how: Any) -> Any:
    ours = list(command[:2]) == [sys.executable, "-m"] and command[2].startswith("ktbench.")
    return ForkedPopen(command, **how) if ours else _Popen(command, *args, **how)


def _become(command: Sequence[str], requests: int, output: int, errors: int, kept: Sequence[int]) -> None:
    """The child's life. It ends here, whatever happens."""
    code = 1
    try:
        os.setsid()
        for number, to in ((requests, 0), (output, 1), (errors, 2)):
            os.dup2(number, to)
        for path in Path("/proc/self/fd").iterdir():
            if int(path.name) > 2 and int(path.name) not in kept:
                with suppress(OSError):  # that of the listing
                    os.close(int(path.name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w")
        _, _, module, *sys.argv[1:] = command
        code = import_module(module).main()
        sys.stdout.flush(), sys.stderr.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


@dataclass
class Command:
    """One command of ktbench in `folder`, begun by `start`; its output is in files."""

    folder: Path
    words: Sequence[str]
    prepare: Callable[[], object] = lambda: None
    code: int | None = field(default=None, init=False)

    def start(self) -> Self:
        """Fork: the child is as good as a fresh process, but has everything loaded."""
        self.load()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._said_before = len(self._stderr())
        self._alive, held = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._alive)
            self._live(held)
        os.close(held)
        return self

    def load(self) -> None:
        """Load what the command needs, once."""
        load_everything()

    def patch(self) -> None:
        """Change what differs from a fresh process, in the child."""
        patch.object(subprocess, "Popen", _popen).start()
        patch.object(timing_lock, "lock_file", lambda: Path("timing.lock").absolute()).start()
        patch.object(progress, "_STATUS_EVERY_S", 0.0).start()  # every trial that is over is said

    def _live(self, held: int) -> None:
        code = 1
        try:
            os.chdir(self.folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in what it starts
            for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ |= {"ALIVE": str(held), "KTBENCH_CACHE": str(self.folder / "cache"), "HOME": str(self.folder)}
            self.patch()
            self.prepare()
            code = cli.main(self.words)
            sys.stdout.flush(), sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def send(self, number: int) -> None:
        """Send a signal to the command alone."""
        if not self.is_over():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """As the kernel, a batch system or a power button would: nothing is asked."""
        self.send(signal.SIGKILL)

    def kill_after(self, wait_s: float) -> None:
        """Kill it after so many seconds, unless it has ended before."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not self.is_over():
            time.sleep(0.001)
        self.kill()

    def is_over(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def end(self) -> int:
        """Exit code, below 0 the signal that ended it, once all that it has started has ended, too."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._until_alone()
        return self.code

    def _until_alone(self) -> None:
        """Wait until no process that it has started is left. Raises AssertionError after a while."""
        ended = select.select([self._alive], [], [], ENDED_S)[0]
        assert ended, f"{self.words}: something that it has started is left after {ENDED_S} s"
        os.close(self._alive)

    def said(self) -> list[str]:
        """Lines of stderr of this command alone."""
        return self._stderr()[self._said_before :]

    def message(self) -> str:
        """The last line that it said."""
        lines = [line for line in self.said() if line.strip()]
        return lines[-1] if lines else ""

    def told(self) -> int:
        """Trials that it said were over: those are promised."""
        return sum(line.startswith("  round ") for line in self.said())

    def _stderr(self) -> list[str]:
        file = self.folder / "stderr.txt"
        return file.read_text(errors="replace").splitlines() if file.exists() else []
