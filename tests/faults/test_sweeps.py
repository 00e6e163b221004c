"""Each fault a few times; `nox -s faults` does it hundreds of times."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.drawing import few_of
from tests.faults.disks import flipped_bits, full_disk, full_output, half_lines, read_only
from tests.faults.findings import Finding
from tests.faults.kills import Undisturbed, killed_any_time, killed_while_writing
from tests.faults.others import bad_worker, clock_back, interrupted, two_sweeps

RANDOM = Random(7)
# What happens, and what is said of it in the end: a regular expression.
FAULTS: dict[str, tuple[Callable[[Path, Undisturbed], Finding], str]] = {
    "kill": (lambda folder, alone: killed_any_time(folder, alone, RANDOM, 2), ""),
    "torn": (lambda folder, alone: killed_while_writing(folder, alone, RANDOM, 2), ""),
    "interrupt": (interrupted, "the same command with resume=hurt continues"),
    "half": (lambda folder, alone: half_lines(folder, alone, RANDOM, 20), ""),
    # Which of both depends on the bit: whether the line is JSON still.
    "bits": (
        lambda folder, alone: flipped_bits(folder, alone, RANDOM, 60, 1),
        "the line was changed after it was|not a log line of ktbench",
    ),
    "full": (lambda folder, alone: full_disk(folder, alone, RANDOM, 3), "; make "),
    "output": (lambda folder, alone: full_output(folder), "No space left on device"),
    "read-only": (lambda folder, alone: read_only(folder), r"a run cannot be written there \("),
    "clock": (clock_back, ""),
    "two": (two_sweeps, " is writing to this run; wait until it has ended"),
}
SAYS = {
    "deaf": "more than 3 s",
    "stops": "more than 3 s",
    "eats": "out of memory",
    "killed": "ended by SIGKILL",
    "dies": "ended by SIGSEGV",
    "babbles": "JSON is malformed",
    "unplugged": "No such file or directory: 'peer/model.gguf' (see worker.log)",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_or_doubled(tmp_path: Path, undisturbed: Undisturbed, fault: str) -> None:
    hurt, says = FAULTS[fault]
    found = hurt(tmp_path / fault, undisturbed)
    assert found.holds, found
    assert re.search(says, found.message)


# One that is stopped costs a deadline as one that is deaf does.
@pytest.mark.parametrize("script", few_of(SAYS, {*SAYS} - {"stops"}))
def test_a_bad_worker_costs_its_own_cells(tmp_path: Path, script: str) -> None:
    found = bad_worker(tmp_path / script, script)
    assert found.holds, found
    assert SAYS[script] in found.message
