"""The engine of a command line, opened in this process to answer."""

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

# Keys of what is measured, which nothing here is.
_MEASURED = ("measure", "resume", "resume_changed", "run_name", "sweep", "wait", "workload")
# What is asked is not known: the least that can be.
_SERVE = WorkloadSpec(phase="serve", prompt=1, steps=1, stream=StreamSpec(concurrency=1, requests=1, answer=1))
# PyTorch keeps what it has prepared for a bf16 product of each number of tokens, in ideep's cache of each thread and in
# oneDNN's, 1,024 products each. Serving meets every number of tokens: that is hundreds of MiB, hardly ever used again.
_CACHES = {"LRU_CACHE_CAPACITY": 512, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": 32}


def serving_spec(verb: str, overrides: Sequence[str]) -> tuple[RunSpec, str]:
    """The cell whose engine is to answer, and why this machine cannot run it, empty where it can.

    Raises RequestError for what cannot answer anywhere, and for what does not fit in memory.
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
    """`serving_spec` with the machine's best features and all of serving, where the command line does not name others.

    Where a model or its precision takes not all of them, with as many as it takes. Raises RequestError.
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
    own = serving_spec(verb, overrides)  # raises what is wrong whatever was added
    if is_chosen:
        return own
    fewer = ([*overrides, *best, "engine.amx=false", *serving], [*overrides, *serving])
    return next(filter(None, (_that_runs(verb, words) for words in fewer)), own)


def _that_runs(verb: str, overrides: Sequence[str]) -> tuple[RunSpec, str] | None:
    """`serving_spec`, None for what is refused or cannot run here."""
    with suppress(RequestError):
        spec = serving_spec(verb, overrides)
        return None if spec[1] else spec
    return None


def features_said(verb: str, spec: RunSpec) -> str:
    """The features of a cell, as they are said before its engine loads."""
    on = [feature for feature in FEATURES if spec.engine.features[feature.name] != feature.off]
    listed = ", ".join(f"{feature.tag(spec.engine.features[feature.name])} {feature.title}" for feature in on)
    return f"features: {listed or 'none'} (engine.NAME=false turns one off, see `ktbench {verb} --help`)"


def not_served(spec: RunSpec) -> str:
    """Why the engine serves no requests to the model; empty where it does. Imports PyTorch, see `prepare_process`."""
    from ktbench.engine.protocol import Unsupported
    from ktbench.engine.serving.engine import require_servable

    try:
        require_servable(spec)
    except Unsupported as error:
        return str(error)
    return ""


@refusing()
def require_free_cache(spec: RunSpec) -> None:
    """Raises RequestError, before weights load, where the folder of the prefix cache is taken or is none."""
    from ktbench.engine.serving.page_folder import PageFolder

    if spec.engine.prefix_cache and spec.engine.serving.disk is not None:
        PageFolder(Path(spec.engine.serving.disk), b"").close()


def prepare_process(spec: RunSpec) -> None:
    """Import PyTorch with its caches small and its threads on the cores of the device role; it reads both then.

    The calling thread, which OpenMP binds to one cpu, may run on every core afterwards, and so may those that it
    starts. Raises ValueError where there are too few cores.
    """
    from ktbench.run.worker_process import host_role, prepare_host

    cpus = read_topology().core_cpus
    os.sched_setaffinity(0, cpus)
    limit_caches()
    prepare_host(host_role(read_topology()).cpus, [spec])
    os.sched_setaffinity(0, cpus)


def limit_caches() -> None:
    """Keep small what PyTorch caches of products of each shape. What the user has set stays."""
    for name, capacity in _CACHES.items():
        os.environ.setdefault(name, str(capacity))


def open_here(spec: RunSpec, show: Callable[[Loading], None]) -> ServingEngine:
    """The engine, whose threads belong to the thread that calls this, and that drives it. Raises RequestError."""
    from ktbench.engine.serving.engine import open_serving
    from ktbench.run.worker_process import host_role, prepare_host

    host = host_role(read_topology())
    prepare_host(host.cpus, [spec])  # the number of PyTorch's threads is that of the thread which sets it
    with refusing():
        return open_serving(spec, host, LoadProgress(show))
