"""The memory of a process that serves prompts of every length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktbench.engine.serving.requests import ServeRequest
from ktbench.run.serving.opening import limit_caches, open_here, prepare_process, serving_spec
from tests.faults.clients import resident_bytes

ROOT = Path(__file__).parents[2]
_WARM, _LONGEST = 110, 150  # tokens of the prompt after which memory stays, and of the last one
_MOST_BYTES = 32 << 20  # with the caches that PyTorch has by default it grows by 159 MiB


def grown_bytes() -> int:
    """By how much this process grows while it serves prompts of lengths that it has not met, once others are served."""
    spec, _ = serving_spec("serve", ["model=nano", "engine.threads=1", "engine.serving.cache_tokens=256"])
    assert "torch" not in sys.modules
    prepare_process(spec)
    engine = open_here(spec, lambda loading: None)
    for length in range(1, _LONGEST + 1):
        engine.submit(ServeRequest(key=str(length), prompt=(length,) * length, max_new=1))
        while not engine.step():
            pass
        if length == _WARM:
            before = resident_bytes(os.getpid())
    return resident_bytes(os.getpid()) - before


@pytest.mark.thorough
def test_memory_does_not_follow_the_number_of_lengths() -> None:
    command = [sys.executable, "-m", "tests.serve.test_memory"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert int(output) < _MOST_BYTES


def test_what_the_user_has_set_of_the_caches_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not set is limited, without which memory follows the number of lengths."""
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    limit_caches()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert int(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) > 0


if __name__ == "__main__":
    print(grown_bytes())
