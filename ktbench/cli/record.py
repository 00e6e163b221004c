"""`record`: which experts a model's routers choose, kept as an activation profile for placement."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.engine.workload.recorded import read_profile
from ktbench.run.child import ChildFailed, run_subprocess
from ktbench.run.progress import say, warn
from ktbench.run.record import RECORD, read_recording, summary
from ktbench.spec.errors import FAILED


def run(overrides: Sequence[str]) -> int:
    """Run the prompts of one cell, print which experts were selected, save the profile.

    Exit code 4 where the cell could not be run. Raises RequestError before anything loads.
    """
    recording, unsupported = read_recording(overrides)
    if unsupported:
        warn(f"ktbench record: UNSUPPORTED: {unsupported}")
        return FAILED
    try:
        run_subprocess(RECORD, recording, say)
    except ChildFailed as error:
        warn(f"ktbench record: {error}")
        return FAILED
    print("\n".join(summary(read_profile(recording.output, recording.spec.model))))
    print(f"\nwrote {recording.output}")
    return 0
