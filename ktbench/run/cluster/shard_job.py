"""One shard of a sweep on its node: an ordinary sweep in a subprocess, with its own log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ktbench.files import append_to
from ktbench.run.cluster.shards import Shard, is_wanted, read_shard, whole_rounds, withdraw
from ktbench.spec.errors import BAD_REQUEST, INTERRUPTED, RequestError, error_text
from ktbench.spec.record import Environment, Record

_OUTPUT = "output.txt"
# Launchers set these for jobs that share a node; a shard uses the whole node, and workers count its cores.
_NOT_INHERITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# Slurm sends these to all processes of a job that is preempted, cancelled, or near its time limit.
_JOB_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
# After a second interrupt: until the shard has ended its workers; unresponsive ones take seconds.
_TERMINATE_S = 10.0


class ShardWithdrawn(RequestError):
    """The shard was withdrawn."""


def run_shard(job: Any) -> str:
    """Run the shard in the folder `job.shard`; a launcher calls this on a node. Returns why it failed, or ""."""
    folder = Path(job.shard)
    shard = read_shard(folder)
    if shard is None:
        return f"{folder} has no shard: it was withdrawn, or this node does not see the folder of the sweep"
    try:
        code = _run(folder, shard.home)
    except OSError as error:
        return error_text(error)
    return why_ended(code, folder) if code else ""


def _run(folder: Path, home: str) -> int:
    """Exit code of the process that runs the shard.

    It has its own session, so that an interrupt from the terminal reaches this process only, which withdraws the shard
    and waits for the current trial. A second interrupt ends that; anything else that ends the job ends the shard at
    once.
    """
    env = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    command = [sys.executable, "-m", "ktbench.run.cluster.shard_job", str(folder)]
    with append_to(folder / _OUTPUT) as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=home, env=env, start_new_session=True
        )
    try:
        return process.wait()
    except KeyboardInterrupt:
        _withdraw_and_wait(folder, process)
        raise
    finally:
        process.kill()  # nothing where it has ended
        process.wait()


def _withdraw_and_wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Withdraw a shard and wait for it; an interrupt is forwarded to it, so that it ends its workers."""
    try:
        from ktbench.run.progress import say

        withdraw(folder)
        say("interrupted: waiting for the current trial, a second interrupt stops it")
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_S)


def why_ended(code: int, folder: Path) -> str:
    """Why the process of a shard ended with an exit code other than 0."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name} (see {folder.name}/{_OUTPUT})"
    lines = (folder / _OUTPUT).read_text(errors="replace").strip().splitlines()
    return (lines or [f"exit code {code}"])[-1].removeprefix("ktbench: ")


def carry_out_shard(folder: Path) -> None:
    """Simulate and measure the cells of a shard into its folder, continuing where its log ends.

    Raises RequestError if code or machine differ from those of its log, or if another run is timing on this host; waits
    for shards of the same run.
    """
    from ktbench.host.timing_lock import timing
    from ktbench.run.progress import say

    shard = read_shard(folder)
    if shard is None:
        raise ShardWithdrawn(f"{folder} was withdrawn before it began")
    is_timed = any(cell.spec.machine is None for cell in shard.header.cells)
    run = shard.header.run

    def on_wait(holder: object) -> None:
        say(f"waiting for another shard on this host: {holder}")

    with timing("sweep", run, on_wait) if is_timed else nullcontext():
        _carry_out(shard, folder)


def _carry_out(shard: Shard, folder: Path) -> None:
    from ktbench.host.environment import environment
    from ktbench.results import Log, read_run
    from ktbench.run.execute import measure_cells, open_sweep
    from ktbench.run.request import plan_here
    from ktbench.sim import simulate_cells

    log = Log(folder)
    try:
        if not is_wanted(folder):  # a later withdrawal sees that it is running
            raise ShardWithdrawn(f"{folder} was withdrawn while it waited")
        machine, planned = environment(), plan_here(shard.header.cells, refuses=False)
        if not log.path.stat().st_size:
            log.append(shard.header, *shard.environments, *shard.kept)
        known = whole_rounds(read_run(folder), planned.cells)
        require_alike(shard, machine, known)
        log.append(machine)
        kept = {(record.cell, record.round): record for record in known}
        on_record = _on_record(folder, planned.cells)
        for record in simulate_cells(planned.simulated, planned.unsupported, machine, kept):
            log.append(record)
            on_record(record)
        sweep = open_sweep(planned, log, machine, kept, on_record)
        try:
            measure_cells(sweep, planned, shard.header.parts, shard.header.measure)
        finally:
            sweep.close()
    finally:
        log.close()


def _on_record(folder: Path, cells: Any) -> Callable[[Record], None]:
    """A function that prints how trials ended, and ends the shard after the current one if it was withdrawn."""
    from ktbench.run.progress import trial_progress

    show = trial_progress(cells)

    def on_record(record: Record) -> None:
        show(record)
        if not is_wanted(folder):
            raise ShardWithdrawn(f"{folder} was withdrawn; what was measured is kept")

    return on_record


def require_alike(shard: Shard, machine: Environment, known: Iterable[Record]) -> None:
    """Raises RequestError if records of a shard would be mixed with those of other code or another machine."""
    measured = [record for record in known if record.provenance == "measured"]
    before = [("code", shard.header.code_id, machine.code_id)]
    before += [("machine", env_id, machine.env_id) for env_id in sorted({record.env_id for record in measured})]
    for what, then, now in before:
        if then != now and not shard.mixed:
            raise RequestError(
                f"its {what} was {then}, this node is {what} {now}; use nodes with the same code and machine, "
                "or mix them with resume_changed=true"
            )


def main() -> int:
    """Entry of `python -m ktbench.run.cluster.shard_job FOLDER`: exit code 2 if it was not run, 130 if interrupted.

    A cluster signals all processes of a job before it ends or requeues it. Only the job reacts and the shard runs on
    until then: a job that ended with its shard would not be requeued.
    """
    for number in _JOB_SIGNALS:  # before an import that takes seconds; workers inherit it
        signal.signal(number, signal.SIG_IGN)
    try:
        from ktbench.run.worker_process import die_with_parent

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
