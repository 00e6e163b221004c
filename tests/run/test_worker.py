"""A worker process asked for timelines, and where it puts PyTorch's threads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ktbench.engine.protocol import Unsupported
from ktbench.run.messages import OpenSession, RecordIds
from ktbench.run.worker import Worker, WorkerDied
from ktbench.spec.record import Outcome
from ktbench.spec.timeline import Timeline
from tests.tiny import tiny_cell

ROOT = Path(__file__).parents[2]
FUSED = tiny_cell("+v", avx512=True)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Worker]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = []

    def start_with(script: str) -> Worker:
        command = (sys.executable, str(Path(__file__).parent / "fake_worker.py"), json.dumps({"+v": script}))
        opened = OpenSession(cells=(FUSED,), ids=RecordIds(code_id="code", env_id="env", sitting="here"))
        started.append(Worker.start(opened, tmp_path / "worker.log", 60, command))
        return started[-1]

    yield start_with
    for worker in started:
        worker.stop()


def test_a_timeline_comes_back_as_it_was_and_turns_go_on(start: Callable[[str], Worker]) -> None:
    worker = start("")
    timeline = worker.timeline(FUSED, 10)
    assert isinstance(timeline, Timeline)
    assert (timeline.provenance, timeline.step_s) == ("measured", 0.003)
    assert [(span.resource, span.begin_s, span.layer) for span in timeline.spans] == [
        ("device", 0.0, 0),
        ("host", 0.001, 0),
    ]
    assert worker.trial(FUSED, 0, 10).outcome is Outcome.OK


@pytest.mark.parametrize(("script", "why"), [("unsupported", "no such feature"), ("no timeline", "keeps no time")])
def test_a_timeline_that_there_cannot_be_says_why(start: Callable[[str], Worker], script: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        start(script).timeline(FUSED, 10)


def test_a_crash_while_tracing_is_an_outcome(start: Callable[[str], Worker]) -> None:
    with pytest.raises(WorkerDied, match="the trace: the worker was ended by SIGSEGV") as died:
        start("crash").timeline(FUSED, 10)
    assert died.value.outcome is Outcome.CRASHED


def test_with_roles_apart_pytorch_stays_on_the_device_roles_cores() -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    program = """
import os, torch
from ktbench.engine.roles import reach
from ktbench.host.topology import read_topology
from ktbench.run.serve import pin_device_role
from tests.tiny import tiny_spec
cpus = read_topology().core_cpus
if len(cpus) < 2: print("one core"); raise SystemExit
pin_device_role(cpus, [tiny_spec(), tiny_spec(threads=1)])
print(torch.get_num_threads() == len(cpus))
specs = [tiny_spec(roles="split", device_threads=1)]
pin_device_role(cpus, specs)
torch.ones(2048, 2048).sum()
print(torch.get_num_threads(), os.sched_getaffinity(0) == {cpus[0]})
from ktbench._kernels import ThreadPool
with reach(cpus): ThreadPool(list(cpus[1:]), 0)
print(os.sched_getaffinity(0) == {cpus[0]})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stdout == "one core\n":
        pytest.skip("one core: the roles share it")
    assert done.stdout.split() == ["True", "1", "True", "True"], done.stderr
