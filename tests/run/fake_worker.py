"""A worker that serves the scripted system: `python fake_worker.py SCRIPTS_JSON RESPONSES_FD`."""

from __future__ import annotations

import json
import os
import sys

from ktbench.run.session import Session
from ktbench.run.worker_process import serve
from tests.fake import FakeRoofs, FakeSystem

if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "wb") as responses:
        scripts = json.loads(sys.argv[1])
        sys.exit(
            serve(
                lambda opened: Session(system=FakeSystem(scripts), roofs=FakeRoofs(), ids=opened.ids),
                sys.stdin.buffer,
                responses,
            )
        )
