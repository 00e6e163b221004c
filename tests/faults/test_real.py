"""Faults of commands that really load and compute, each once; `nox -s faults` does it more often.

Each in a process of its own, whose forks inherit no thread of OpenMP that other tests have used.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)


SHORT = ("killed-sweep",)
LONG = (*SHORT, "full-report", "ended-0", "killed-report", "stopped", "stopped-export")


@pytest.mark.usefixtures("loaded_children")
@pytest.mark.parametrize(
    ("fault", "kills"),
    [*((fault, 3) for fault in SHORT), *(pytest.param(fault, 10, marks=pytest.mark.thorough) for fault in LONG)],
)
def test_nothing_is_lost_or_torn(fault: str, kills: int) -> None:
    command = [sys.executable, "-m", "tests.faults", "--only", fault, "--kills", str(kills)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
