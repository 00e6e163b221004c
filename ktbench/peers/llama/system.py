"""llama.cpp under measurement: a GGUF file, tuned to each workload and given the very tokens that our engine is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.gguf.header import Header
from ktbench.engine.protocol import HostRole
from ktbench.peers.llama.api import Model
from ktbench.peers.llama.file import read_weights
from ktbench.peers.llama.library import Library
from ktbench.peers.llama.limits import cores_of, require
from ktbench.peers.llama.runner import Calls, Runner, Trials
from ktbench.peers.llama.script import write_script
from ktbench.peers.llama.settings import first_settings, walks
from ktbench.peers.llama.tuning import Tuned, Tuner
from ktbench.peers.llama.unseen import Unseen
from ktbench.peers.llama.work import work_of
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec

_MOST_RUNNERS = 4
# Positions that the contexts of other workloads may hold together: 1.6 GB of keys and values of Qwen3-30B-A3B.
_MOST_CELLS = 16_384


def open_llama(path: Path, model: ModelSpec, host: HostRole, weights: str | None = None) -> LlamaSystem:
    """llama.cpp with the weights of the GGUF file at `path` in memory, on the cores of `host`.

    `weights` is the digest that the file has to name as its own (None: any). Raises ValueError in one line for a file
    that is not whole, holds other weights or another model, and where this thread may not run on all those cores, which
    its threads would share; ImportError without llama-cpp-python; MemoryError.
    """
    header = read_weights(path, weights)
    if len(os.sched_getaffinity(0)) < host.cores:
        raise ValueError(f"llama.cpp: this thread may run on {len(os.sched_getaffinity(0))} of {host.cores} cores")
    loaded = Model(Library.load(), path)
    try:
        _require_same(path, "layers", loaded.layers, model.shape.layers)
        _require_same(path, "tokens in its vocabulary", loaded.vocab, model.shape.vocab)
    except ValueError:
        loaded.close()
        raise
    return LlamaSystem(loaded, model, host, header)


def _require_same(path: Path, what: str, found: int, asked: int) -> None:
    if found != asked:
        raise ValueError(f"{path}: has {found} {what}, asked for are {asked}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A workload that is tuned and can be run."""

    runner: Runner
    tuned: Tuned


class LlamaSystem(Unseen):
    """Implements `ktbench.engine.protocol.System`; made by `open_llama`."""

    name = "llama.cpp"

    def __init__(self, loaded: Model, model: ModelSpec, host: HostRole, header: Header) -> None:
        self.model, self._loaded, self._host, self._header = model, loaded, host, header
        self._tuned: dict[tuple[WorkloadSpec, int], Tuned] = {}
        self._ready: dict[tuple[WorkloadSpec, int], Ready] = {}  # last used last
        self._workload: WorkloadSpec | None = None

    def configure(self, spec: RunSpec) -> None:
        """See `System`. The first turn at a workload tries llama.cpp's settings for `peer.tune_s` seconds."""
        require(spec, self._loaded.library.most_sequences)
        key = spec.workload, cores_of(spec, self._host)
        ready = self._ready.pop(key, None)
        if ready is None:
            calls = Calls(self._loaded.library, write_script(spec.workload, self.model.shape.vocab))
            self._make_room(calls.script.cells)
            ready = self._prepare(calls, key[1], self._tuned.get(key), spec.peer.tune_s)
        self._tuned[key], self._ready[key] = ready.tuned, ready
        self._current, self._workload = ready, spec.workload
        self.start()

    def _make_room(self, cells: int) -> None:
        """Lets go of the contexts that were used longest ago; their settings stay known."""
        while self._ready and (len(self._ready) >= _MOST_RUNNERS or self._cells + cells > _MOST_CELLS):
            self._ready.pop(next(iter(self._ready))).runner.close()

    @property
    def _cells(self) -> int:
        return sum(ready.runner.cells for ready in self._ready.values())

    def _prepare(self, calls: Calls, cores: int, tuned: Tuned | None, budget_s: float) -> Ready:
        trials, script = Trials(self._loaded, calls), calls.script
        try:
            if tuned is None:
                first = first_settings(cores, script.call_tokens)
                tuned = Tuner(trials, budget_s).tune(first, walks(cores, script.step_tokens))
            else:
                trials.prepare(tuned.settings)
        except BaseException:
            trials.close()
            raise
        return Ready(runner=trials.runner, tuned=tuned)

    def start(self) -> None:
        """See `System`. Decode removes what came after the prompt from the memory."""
        self._current.runner.start()

    def step(self) -> None:
        """See `System`. A prefill step begins with clearing the table of positions, which takes microseconds."""
        self._current.runner.step()

    def logits(self) -> NDArray[np.float32]:
        """See `System`."""
        return self._current.runner.logits()

    def notes(self) -> tuple[str, ...]:
        """How it was tuned; what it was built for and holds."""
        library, ready = self._loaded.library, self._current
        return (
            ready.tuned.told(f"llama.cpp {library.version}"),
            f"llama.cpp {library.version} built for {library.flags}; weights {self._loaded.description}, "
            "keys and values F16",
        )

    def own_step_s(self) -> float:
        """See `HasClock`; of llama_perf_context, over the steps since `start`."""
        return self._current.runner.own_step_s

    def work(self) -> Work | None:
        """See `System`; see `work_of`."""
        assert self._workload is not None
        return work_of(self._workload, self.model.shape, self._header.tensors.values())

    def close(self) -> None:
        """See `System`."""
        while self._ready:
            self._ready.popitem()[1].runner.close()
        self._loaded.close()
