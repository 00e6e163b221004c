"""A decode step under PyTorch's profiler: kernels, copies and gaps of the cell that overrides describe.

    python -m tests.gpu.profile_step [overrides]

Without +c and, where that is asked for, with it. Writes Chrome traces beside the printed tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

from ktbench.engine.protocol import System
from ktbench.host.topology import read_topology
from ktbench.run.request import one_cell_request
from ktbench.run.worker_process import host_role, open_system, prepare_host
from ktbench.spec.run_spec import RunSpec

_PROFILED_STEPS, _ROWS = 3, 40


def profiled(system: System, spec: RunSpec, folder: Path) -> None:
    """Print times of steps without and with a profiler, and what it saw."""
    from torch.profiler import ProfilerActivity, profile  # PyTorch is imported after its threads have their cpus

    system.configure(spec)
    steps = spec.workload.steps
    for _ in range(2):
        took_s = _steps_s(system, steps)
    print(f"== {spec.label}: {1e3 * median(took_s):.3f} ms a step, {'; '.join(system.notes())}")
    system.start()
    on_cuda = spec.engine.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as seen:
        _steps_s(system, min(_PROFILED_STEPS, steps))
    sort = f"self_{'cuda' if on_cuda else 'cpu'}_time_total"
    print(seen.key_averages().table(sort_by=sort, row_limit=_ROWS, max_name_column_width=70))
    seen.export_chrome_trace(str(folder / f"profile_{spec.label.replace(' ', '_')}.json.gz"))


def _steps_s(system: System, steps: int) -> list[float]:
    system.start()
    took_s = []
    for _ in range(steps):
        began = perf_counter()
        system.step()
        took_s.append(perf_counter() - began)
    return took_s


def main(overrides: Sequence[str]) -> None:
    """Load the cell once and profile it."""
    (part,) = one_cell_request("profile_step", overrides).parts
    eager = replace(part.spec, engine=replace(part.spec.engine, cuda_graph=False))
    specs = [eager, *([part.spec] if part.spec != eager else [])]
    host = host_role(read_topology())
    prepare_host(host.cpus, specs)
    system = open_system(specs, host)
    print(f"torch {version('torch')}")
    for spec in specs:
        profiled(system, spec, Path())
    system.close()


if __name__ == "__main__":
    main(sys.argv[1:])
