"""One share of a sweep on its node: an ordinary sweep, in a process and into a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ktbench.run.shards import Shard, is_asked, read_shard, whole_rounds, withdraw
from ktbench.spec.errors import BAD_REQUEST, INTERRUPTED, RequestError, error_text
from ktbench.spec.record import Environment, Record

_SAID = "said.txt"
# Launchers set these for jobs that share a node; a share has its node to itself, and workers count its cores.
_NOT_INHERITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# What Slurm tells all processes of a job that it preempts or cancels, and before its time is over, as submitit asks.
_FOR_THE_JOB = (signal.SIGTERM, signal.SIGUSR2)
# After a second interrupt: until the share has ended its workers, which takes those that do not listen seconds.
_LAST_WORDS_S = 10.0


class Withdrawn(RequestError):
    """Nobody waits for the share any more."""


def run_shard(job: Any) -> str:
    """What a launcher calls on a node: carries out the share in the folder `job.shard`. Why it failed, empty if not."""
    folder = Path(job.shard)
    share = read_shard(folder)
    if share is None:
        return f"{folder} has no share: it was withdrawn, or this node does not see the folder that the sweep runs in"
    try:
        code = _run(folder, share.home)
    except OSError as error:
        return error_text(error)
    return why_ended(code, folder) if code else ""


def _run(folder: Path, home: str) -> int:
    """Exit code of the process that carries the share out.

    It has a session of its own, so that an interrupt from the terminal is this process's alone to answer: it withdraws
    the share and waits for the turn under way. A second one cuts that; whatever else ends the job ends the share at
    once.
    """
    env = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    command = [sys.executable, "-m", "ktbench.run.shard_job", str(folder)]
    with (folder / _SAID).open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=home, env=env, start_new_session=True
        )
    try:
        return process.wait()
    except KeyboardInterrupt:
        from ktbench.run.progress import say

        withdraw(folder)
        say("interrupted: waiting for the turn under way, a second interrupt ends it")
        _wait_or_cut(process)
        raise
    finally:
        process.kill()  # nothing where it has ended
        process.wait()


def _wait_or_cut(process: subprocess.Popen[bytes]) -> None:
    """Wait for a share that was withdrawn; an interrupt is passed on to it, so that it ends what it has started."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_S)


def why_ended(code: int, folder: Path) -> str:
    """What is known of a share's process that ended with an exit code other than 0."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name} (see {folder.name}/{_SAID})"
    lines = (folder / _SAID).read_text(errors="replace").strip().splitlines()
    return (lines or [f"exit code {code}"])[-1].removeprefix("ktbench: ")


def carry_out_shard(folder: Path) -> None:
    """Simulate and measure the cells of a share into its folder, and go on where its log ends.

    Raises RequestError where this is not the code or the machine that the share goes on from, and where others are
    timing on this host; shares of the same run are waited for.
    """
    from ktbench.host.timing_lock import timing
    from ktbench.run.progress import say

    share = read_shard(folder)
    if share is None:
        raise Withdrawn(f"{folder} was withdrawn before it began")
    times = any(cell.spec.machine is None for cell in share.header.cells)
    run = share.header.run

    def on_wait(holder: object) -> None:
        say(f"waiting for its turn on this host: {holder}")

    with timing("sweep", run, on_wait) if times else nullcontext():
        _carry_out(share, folder)


def _carry_out(share: Shard, folder: Path) -> None:
    from ktbench.host.environment import environment
    from ktbench.results import Log, read_run
    from ktbench.run.execute import measure_cells, open_sweep
    from ktbench.run.request import plan_here
    from ktbench.sim.records import simulate_cells

    log = Log(folder)
    try:
        if not is_asked(folder):  # whoever withdraws it from now on sees that it is under way
            raise Withdrawn(f"{folder} was withdrawn while it waited")
        machine, planned = environment(), plan_here(share.header.cells, refuses=False)
        if not log.path.stat().st_size:
            log.append(share.header, *share.environments, *share.kept)
        known = whole_rounds(read_run(folder), planned.cells)
        require_alike(share, machine, known)
        log.append(machine)
        kept = {(record.cell, record.round): record for record in known}
        on_record = _told(folder, planned.cells)
        for record in simulate_cells(planned.simulated, planned.unsupported, machine, kept):
            log.append(record)
            on_record(record)
        sweep = open_sweep(planned, log, machine, kept, on_record)
        try:
            measure_cells(sweep, planned, share.header.parts, share.header.measure)
        finally:
            sweep.close()
    finally:
        log.close()


def _told(folder: Path, cells: Any) -> Callable[[Record], None]:
    """Says how turns ended, and ends the share between two of them once it was withdrawn."""
    from ktbench.run.progress import turns_ended

    ended = turns_ended(cells)

    def on_record(record: Record) -> None:
        ended(record)
        if not is_asked(folder):
            raise Withdrawn(f"{folder} was withdrawn; what was measured is kept")

    return on_record


def require_alike(share: Shard, machine: Environment, known: Iterable[Record]) -> None:
    """Raises RequestError where records of a share would be mixed with those of other code or another machine."""
    measured = [record for record in known if record.provenance == "measured"]
    before = [("code", share.header.code_id, machine.code_id)]
    before += [("machine", env_id, machine.env_id) for env_id in sorted({record.env_id for record in measured})]
    for what, then, now in before:
        if then != now and not share.mixed:
            raise RequestError(
                f"its {what} was {then}, this node is {what} {now}; have it run on nodes that are alike, "
                "or mix them knowingly with resume_changed=true"
            )


def main() -> int:
    """Entry of `python -m ktbench.run.shard_job FOLDER`. Exit code 2 where it was not run, 130 where interrupted.

    A cluster tells all processes of a job that it will end or be put back into the queue. That is for the job to
    answer, and the share works on until the job ends: a job that ended with its share would not be put back.
    """
    for number in _FOR_THE_JOB:  # before an import that takes seconds; workers inherit it
        signal.signal(number, signal.SIG_IGN)
    try:
        from ktbench.run.serve import die_with_parent

        die_with_parent()
        carry_out_shard(Path(sys.argv[1]))
    except (RequestError, OSError) as error:
        print(f"ktbench: {error_text(error)}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
