"""`probe`: the limits of this machine, measured and kept as a machine description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktbench.host.describe import save_description
from ktbench.host.timing_lock import timing
from ktbench.run.probe import loops_table, measure_machine, table
from ktbench.run.progress import waiting
from ktbench.run.request import take_word
from ktbench.spec.errors import RequestError


def run(overrides: Sequence[str]) -> int:
    """Measure, print the table, save the description.

    Raises RequestError before anything is measured, also where another process is timing on this host, unless with
    `wait=true`.
    """
    words, wait = take_word("probe", overrides, "wait", "true or false")
    if wait not in (None, "true", "false"):
        raise RequestError(f"probe wait={wait}: allowed are true and false")
    out = _out(words)
    with timing("probe", on_wait=waiting if wait == "true" else None, for_any=True):
        machine = measure_machine()
    path = out or Path("runs") / f"machine-{machine.env_id}.yaml"
    save_description(machine, path)
    print("\n".join([*table(machine), *loops_table()]))
    print(f"wrote {path}")
    return 0


def _out(overrides: Sequence[str]) -> Path | None:
    for word in overrides:
        if not word.startswith("out=") or word == "out=":
            raise RequestError(f"probe {word}: unknown argument; allowed are out=FILE and wait=true")
    out = Path(overrides[-1].removeprefix("out=")) if overrides else None
    if out is not None and out.is_dir():
        raise RequestError(f"probe out={out}: this is a folder; name a file, such as {out / 'machine.yaml'}")
    return out
