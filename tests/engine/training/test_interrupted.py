"""A training that ends early, or is killed, goes on from its checkpoint to the losses that it would have had."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

for library in ("peft", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed")


AFTER = 5  # steps, of which checkpoints hold four


def interrupted(folder: Path) -> None:
    from tests.engine.training.interrupted import trained

    with pytest.raises(KeyboardInterrupt):
        trained(folder, AFTER)


def killed(folder: Path) -> None:
    script = [sys.executable, "-m", "tests.engine.training.interrupted", str(folder), str(AFTER)]
    assert subprocess.run(script, capture_output=True, check=False).returncode == -signal.SIGKILL


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("end", [interrupted, pytest.param(killed, marks=pytest.mark.thorough)])
def test_a_training_that_ended_early_resumes_to_the_same_losses(tmp_path: Path, end: Callable[[Path], None]) -> None:
    from tests.engine.training.interrupted import STEPS, trained

    _, whole = trained(tmp_path / "whole")
    broken = tmp_path / "broken"
    end(broken)
    assert [path.name for path in sorted(broken.iterdir())] == ["checkpoint-2", "checkpoint-4"]
    done, resumed = trained(broken, resume=True)
    assert (done, len(resumed)) == (STEPS - 4, STEPS)
    assert resumed == pytest.approx(whole, rel=1e-3)  # sums of bf16 in as many parts as a process has threads
    assert whole[-1] != pytest.approx(whole[3], rel=1e-3)  # the last steps changed something
