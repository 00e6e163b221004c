"""The command line as a process that has a timing lock of its own, in the folder that it runs in."""

from __future__ import annotations

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
