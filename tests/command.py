"""Processes: the command line with a timing lock of its own, in the folder that it runs in, and plain programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_CODE = """
import sys
from pathlib import Path
from ktbench.host import timing_lock
timing_lock.lock_file = lambda: Path("timing.lock").absolute()
from ktbench.cli import main
sys.exit(main())
"""
KTBENCH = (sys.executable, "-c", _CODE)
_ROOT = Path(__file__).parents[1]


def at_home(home: Path) -> dict[str, str]:
    """The environment of a user whose home is that folder; what is compiled and timed once is kept for all tests."""
    kept = {"KTBENCH_CACHE": os.environ["KTBENCH_CACHE"]}
    return {"PYTHONPATH": str(_ROOT), "PATH": os.defpath, "HOME": str(home), **kept}


def python_output(program: str, **environ: str) -> str:
    """What a Python program prints in a process of its own; it must end well."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environ).stdout
