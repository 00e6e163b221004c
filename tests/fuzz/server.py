"""A process that has imported everything once and forks for each input: `python -m tests.fuzz.server TARGET...`.

Inputs come as lines of JSON on standard input, what became of them goes to standard output.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.child import MADE, OUTPUT, WRITES, Result, run_child
from tests.fuzz.targets import TARGETS

# Of a process that sleeps. What computes is stopped by its limit on CPU time, and what waits for a CPU does not hang.
_PATIENCE_S, _LOOK_S = 30.0, 0.5
_MOST_OUTPUT = 20_000


def main() -> int:
    """Serve until standard input ends."""
    with tempfile.TemporaryDirectory(prefix="ktbench-fuzz-") as folder:
        home = Path(folder).resolve()
        os.chdir(home)
        requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no answer
        warm_up(home, sys.argv[1:])
        answers.write("ready\n")
        answers.flush()
        for number, line in enumerate(requests):
            target, data = json.loads(line)
            answers.write(json.dumps(asdict(_attempt(target, data, home / str(number)))) + "\n")
            answers.flush()
    return 0


def warm_up(home: Path, names: Sequence[str]) -> None:
    """Import what inputs of these targets need, and make the files that they change."""
    from ktbench import cli
    from ktbench.host import timing_lock

    timing_lock.lock_file = lambda: Path("tmp/timing.lock").absolute()
    quick = ("model=tiny", "machine=paper_a100", "run_name=warm")
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):  # noqa: PTH123
        for words in (("plan", "model=tiny"), ("run", *quick), ("report", "warm", "html")):
            cli.main(words)
    if any(TARGETS[name].builds for name in names):
        _import_families()
    for name in names:
        _in_a_child(TARGETS[name].prepare, home / MADE / name)


def _import_families() -> None:
    import torch

    from ktbench.engine.synthetic import skeleton
    from tests.engine.tiny import NAMES, tiny_model

    torch.set_num_threads(1)
    for name in NAMES:
        skeleton(tiny_model(name))  # imports the code of the family


def _in_a_child(prepare: Callable[[Path], None], folder: Path) -> None:
    """Libraries that compute start threads, which a process that forks must not have."""
    folder.mkdir(parents=True)
    if not (pid := os.fork()):
        try:
            prepare(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"{folder.name}: could not be prepared")


def _attempt(target: str, data: Any, home: Path) -> Result:
    home.mkdir()
    begun = time.monotonic()
    if not (pid := os.fork()):
        run_child(TARGETS[target].carry_out, data, home)
    ended = wait(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    result = Result(
        code=os.waitstatus_to_exitcode(status),
        by="patience" if not ended else signal.Signals(signalled).name if signalled else "",
        cpu_s=used.ru_utime + used.ru_stime,
        wall_s=time.monotonic() - begun,
        output=_text(home / OUTPUT)[-_MOST_OUTPUT:],
        writes=tuple(_text(home / WRITES).splitlines()),
    )
    shutil.rmtree(home, ignore_errors=True)
    return result


def wait(pid: int, patience_s: float = _PATIENCE_S) -> bool:
    """Whether a process ended by itself before it had slept for so long altogether."""
    held, slept_s = os.pidfd_open(pid), 0.0
    try:
        while slept_s < patience_s:
            if select.select([held], [], [], _LOOK_S)[0]:
                return True
            slept_s += 0.0 if _is_ready(pid) else _LOOK_S
        return False
    finally:
        os.close(held)


def _is_ready(pid: int) -> bool:
    """Whether a thread of the process runs or waits for a CPU: its state is R (proc(5))."""
    with suppress(OSError):  # it ends meanwhile
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        return any(thread.read_text().rpartition(") ")[2].startswith("R") for thread in threads)
    return True


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
