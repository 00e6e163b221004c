"""Opens the engine of a command line in this process, to answer requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ktbench.engine.loading.progress import Loading, LoadProgress
from ktbench.host.topology import read_topology
from ktbench.run.request import one_cell_request, plan_here, require_answering
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError, refusing
from ktbench.spec.features import BY_NAME, FEATURES, FUSED
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.sweep import SweepSpec

if TYPE_CHECKING:
    from ktbench.engine.serving.requests import ServingEngine

# Keys for measurements, which do not apply here.
_MEASURED = ("measure", "resume", "resume_changed", "run_name", "sweep", "wait", "workload")
# Requests are not known in advance: the smallest possible values.
_SERVE = WorkloadSpec(phase="serve", prompt=1, steps=1, stream=StreamSpec(concurrency=1, requests=1, answer=1))
# PyTorch caches prepared bf16 products for each number of tokens, in ideep's cache of each thread and in oneDNN's,
# 1,024 products each. Serving sees every number of tokens: that is hundreds of MiB, hardly ever used again.
_CACHES = {"LRU_CACHE_CAPACITY": 512, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": 32}


def serving_spec(verb: str, overrides: Sequence[str]) -> tuple[RunSpec, str]:
    """The cell whose engine is to answer, and why this machine cannot run it, empty if it can.

    Raises RequestError for cells that cannot answer on any machine, and for those that do not fit in memory.
    """
    for word in overrides:
        if word.lstrip("+").partition("=")[0].partition(".")[0] in _MEASURED:
            raise RequestError(f"{verb} {word}: nothing is measured here, leave it out")
    request = one_cell_request(verb, overrides)
    if request.show:
        raise RequestError(f"{verb} inject.show=true: is for `run`, leave it out")
    spec = request.parts[0].spec
    require_answering(verb, spec)
    cells = plan_cells(replace(spec, workload=_SERVE), SweepSpec())
    return spec, next(iter(plan_here(cells, refuses=True).unsupported.values()), "")


def best_serving_spec(verb: str, overrides: Sequence[str]) -> tuple[RunSpec, str]:
    """`serving_spec` with the machine's best features and all serving features, unless the command line sets others.

    If a model or its precision does not support all of them, with as many as it supports. Raises RequestError.
    """
    named = {word.lstrip("+").partition("=")[0] for word in overrides}
    off = {"engine.batching"} if "engine.static_batch" in named else set()
    serving = [
        f"{feature.key}=true"
        for feature in FEATURES
        if feature.serving and not feature.valued and feature.key not in named | off
    ]
    is_chosen = named & {"engine.best", *(BY_NAME[name].key for name in FUSED)}
    best = () if is_chosen else ("engine.best=true",)
    if spec := _that_runs(verb, [*overrides, *best, *serving]):
        return spec
    own = serving_spec(verb, overrides)  # raises the error that does not depend on the added features
    if is_chosen:
        return own
    fewer = ([*overrides, *best, "engine.amx=false", *serving], [*overrides, *serving])
    return next(filter(None, (_that_runs(verb, words) for words in fewer)), own)


def _that_runs(verb: str, overrides: Sequence[str]) -> tuple[RunSpec, str] | None:
    """`serving_spec`, None if it is rejected or cannot run here."""
    with suppress(RequestError):
        spec = serving_spec(verb, overrides)
        return None if spec[1] else spec
    return None


def features_said(verb: str, spec: RunSpec) -> str:
    """The line about a cell's features that is printed before its engine loads."""
    listed = ", ".join(f"{feature.tag(value)} {feature.title}" for feature, value in spec.engine.on)
    return f"features: {listed or 'none'} (engine.NAME=false turns one off, see `ktbench {verb} --help`)"


def not_served(spec: RunSpec) -> str:
    """Why the engine cannot serve the model; empty if it can. Imports PyTorch, see `prepare_process`."""
    from ktbench.engine.protocol import Unsupported
    from ktbench.engine.serving.engine import require_servable

    try:
        require_servable(spec)
    except Unsupported as error:
        return str(error)
    return ""


@refusing()
def require_free_cache(spec: RunSpec) -> None:
    """Raises RequestError, before weights load, if the folder of the prefix cache is in use or not a folder."""
    from ktbench.engine.serving.page_folder import PageFolder

    if spec.engine.prefix_cache and spec.engine.serving.disk is not None:
        PageFolder(Path(spec.engine.serving.disk), b"").close()


def prepare_process(spec: RunSpec) -> None:
    """Import PyTorch with small caches and its threads on the cores of the device role; it reads both settings then.

    The calling thread, which OpenMP binds to one cpu, may run on every core afterwards, and so may the threads that it
    starts. Raises ValueError if there are too few cores.
    """
    from ktbench.run.worker_process import host_role, prepare_host

    cpus = read_topology().core_cpus
    os.sched_setaffinity(0, cpus)
    limit_caches()
    prepare_host(host_role(read_topology()).cpus, [spec])
    os.sched_setaffinity(0, cpus)


def limit_caches() -> None:
    """Limit PyTorch's caches of products by shape, unless the user has set them."""
    for name, capacity in _CACHES.items():
        os.environ.setdefault(name, str(capacity))


def open_here(spec: RunSpec, show: Callable[[Loading], None]) -> ServingEngine:
    """The engine; the calling thread owns its threads and must drive it. Raises RequestError."""
    from ktbench.engine.serving.engine import open_serving
    from ktbench.run.worker_process import host_role, prepare_host

    host = host_role(read_topology())
    prepare_host(host.cpus, [spec])  # the number of PyTorch's threads is that of the thread which sets it
    with refusing():
        return open_serving(spec, host, LoadProgress(show))
