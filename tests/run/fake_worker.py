"""A worker that serves the scripted system: `python fake_worker.py SCRIPTS_JSON ANSWERS_FD`."""

from __future__ import annotations

import json
import os
import sys

from ktbench.run.serve import serve
from tests.fake import FakeRoofs, FakeSystem

if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "wb") as answers:
        sys.exit(
            serve(
                lambda specs: FakeSystem(json.loads(sys.argv[1])), lambda specs: FakeRoofs(), sys.stdin.buffer, answers
            )
        )
