"""Faults of commands that really load and compute, each a few times; `nox -s faults` does it more often.

In a process of its own, whose forks inherit no thread of OpenMP that other tests have used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
_PROGRAM = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from random import Random
from tests.faults.files import WRITERS, full_while_writing
from tests.faults.signals import ENDINGS, child_stopped, ended, stopped
from tests.faults.verbs import VERBS, killed_verb
folder = Path(sys.argv[1])
found = [killed_verb(folder / one.name, one, Random(1), 2) for one in VERBS if one.name in ("sweep", "report")]
found += [full_while_writing(folder / f"full {one.name}", one, Random(1), 2) for one in WRITERS if one.name == "report"]
found += [ended(folder / "ended", next(iter(ENDINGS)), Random(1), 1), stopped(folder / "stopped", Random(1), 2)]
found += [child_stopped(folder / "halted", one) for one in VERBS if one.name == "export"]
print(json.dumps([asdict(one) for one in found]))
"""


def test_nothing_is_lost_or_torn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 6
    assert [one for one in found if one["lost"] or one["doubled"]] == []
