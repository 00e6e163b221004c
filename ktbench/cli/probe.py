"""`probe`: the limits of this machine, measured and kept as a machine description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktbench.cli.keys import ProbeArguments, only_arguments
from ktbench.host.describe import save_description
from ktbench.host.timing_lock import timing
from ktbench.run.probe import loops_table, measure_machine, table
from ktbench.run.progress import waiting
from ktbench.spec.errors import RequestError


def run(overrides: Sequence[str]) -> int:
    """Measure, print the table, save the description.

    Raises RequestError before anything is measured, also where another process is timing on this host, unless with
    `wait=true`.
    """
    given = only_arguments("probe", overrides, ProbeArguments)
    if given.out is not None and Path(given.out).is_dir():
        raise RequestError(f"probe out={given.out}: this is a folder; name a file, such as {given.out}/machine.yaml")
    with timing("probe", on_wait=waiting if given.wait else None, for_any=True):
        machine = measure_machine()
    path = Path(given.out) if given.out else Path("runs") / f"machine-{machine.env_id}.yaml"
    save_description(machine, path)
    print("\n".join([*table(machine), *loops_table()]))
    print(f"wrote {path}")
    return 0
