"""Processes: the command line with a timing lock of its own, in the folder that it runs in, and plain programs."""

from __future__ import annotations

import os
import subprocess
import sys

_CODE = """
import sys
from pathlib import Path
from ktbench.host import timing_lock
timing_lock.lock_file = lambda: Path("timing.lock").absolute()
from ktbench.cli import main
sys.exit(main())
"""
KTBENCH = (sys.executable, "-c", _CODE)


def python_output(program: str, **environ: str) -> str:
    """What a Python program prints in a process of its own; it must end well."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environ).stdout
