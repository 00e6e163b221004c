"""A worker whose steps always take the same time, so that two runs of the same cells have the same table."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ktbench.run.messages import OpenSession
from ktbench.run.session import Session
from ktbench.run.worker_process import serve
from ktbench.spec.run_spec import RunSpec
from tests.fake import FakeRoofs, FakeSystem
from tests.faults.forking import Child

_STEP_S = {"base": 8e-3, "skipping=1": 5e-3, "deferral=1": 4e-3}
_ROOM_BYTES = 1 << 26


class SteadySystem(FakeSystem):
    """Times itself, and keeps the output of each step. `scripts` maps a cell's label to its fate in its first turn."""

    def __init__(self, scripts: Mapping[str, str]) -> None:
        super().__init__({}, step_s=0.0)
        self.fates = scripts

    def configure(self, spec: RunSpec) -> None:
        super().configure(spec)
        if spec.workload.batch == 1 and (fate := self.fates.get(spec.label)):
            _FATES[fate]()

    def own_samples_s(self) -> tuple[float, ...]:
        steps = self.spec.workload.steps
        for _ in range(steps):
            self.step()
            self.keep()
        step_s = _STEP_S.get(self.spec.label, 2e-3) * self.spec.workload.batch
        return tuple(step_s * (1 + number / 100) for number in range(steps))


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def _eats() -> None:
    """Asks for memory until it may have no more: the first requests may be served from what its parent had freed."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _ROOM_BYTES, resource.RLIM_INFINITY))
    eaten = []
    while True:
        eaten.append(bytearray(16 * _ROOM_BYTES))


def _swells() -> None:
    """Fills memory page by page until somebody ends it."""
    pages = []
    while True:
        pages.append(b"x" * (1 << 20))


def _unplugged() -> None:
    raise FileNotFoundError(2, os.strerror(2), "peer/model.gguf")


def _babbles() -> None:
    """What it wrote instead of an answer, its parent reads."""
    for number in _open_files():
        if stat.S_ISFIFO(os.fstat(number).st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            os.write(number, b"{not an answer\n")
    signal.pause()


def _open_files() -> list[int]:
    """Descriptors apart from the standard ones and from that of the listing."""
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return [number for number in numbers if number > 2 and Path(f"/proc/self/fd/{number}").exists()]


_FATES: dict[str, Callable[[], object]] = {
    "deaf": _deaf,
    "eats": _eats,
    "swells": _swells,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "unplugged": _unplugged,
    "babbles": _babbles,
    "dies": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}


class Forked(Child):
    """Stands for `subprocess.Popen`: a worker that is forked, which saves it loading what its parent has loaded.

    Everything else is as in a real worker: it has a session of its own, two pipes, and dies with its parent.
    """

    def __init__(self, scripts: Mapping[str, str], log: Path, answers: int) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(scripts, log, reading, answers)
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb", buffering=0)
        os.set_blocking(writing, False)


def _work(scripts: Mapping[str, str], log: Path, requests: int, answers: int) -> None:
    """The worker's life. It ends here, whatever happens."""
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in (1, 2):
            os.dup2(output, number)
        for number in {*_open_files()} - {requests, answers}:
            os.close(number)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        with os.fdopen(answers, "wb") as responses:
            code = serve(partial(_session, scripts), os.fdopen(requests, "rb"), responses)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _session(scripts: Mapping[str, str], opened: OpenSession) -> Session:
    return Session(system=SteadySystem(scripts), roofs=FakeRoofs(), ids=opened.ids)  # type: ignore[arg-type]


def forked_worker(scripts: Mapping[str, str]) -> Callable[[object, Path, int], Forked]:
    """What stands for `ktbench.run.worker._start_process`."""
    return lambda command, log, answers: Forked(scripts, log, answers)
