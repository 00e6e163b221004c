"""A training that is killed goes on from its checkpoint to the losses that it would have had."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

for library in ("peft", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed")


@pytest.mark.filterwarnings("default")
def test_a_killed_training_resumes_to_the_same_losses(tmp_path: Path) -> None:
    from tests.engine.training.interrupted import STEPS, trained

    _, whole = trained(tmp_path / "whole")
    broken = tmp_path / "broken"
    script = [sys.executable, "-m", "tests.engine.training.interrupted", str(broken), "5"]
    assert subprocess.run(script, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert [path.name for path in sorted(broken.iterdir())] == ["checkpoint-2", "checkpoint-4"]
    done, resumed = trained(broken, resume=True)
    assert (done, len(resumed)) == (STEPS - 4, STEPS)
    assert resumed == pytest.approx(whole, rel=1e-3)  # sums of bf16 in as many parts as a process has threads
    assert whole[-1] != pytest.approx(whole[3], rel=1e-3)  # the last steps changed something
