"""Detects that this process was stopped and continued: by Ctrl-Z, a debugger, or a batch system that suspends jobs.

The clock of the samples runs on meanwhile. A continued process gets SIGCONT (signal(7)).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_continued = 0


def count_pauses() -> None:
    """Start counting. Only Python's main thread may install handlers: in others this does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCONT, _on_continue)


def pauses() -> int:
    """How often this process was continued since `count_pauses`; handlers run between two Python instructions."""
    return _continued


def _on_continue(number: int, frame: FrameType | None) -> None:
    global _continued  # noqa: PLW0603 - a process is stopped as a whole
    _continued += 1
