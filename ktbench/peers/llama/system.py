"""llama.cpp under measurement: a GGUF file, tuned to each workload and run on the same tokens as our engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.gguf.header import GgufHeader
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.llama.api import Batch, LlamaLibrary, Model
from ktbench.peers.llama.black_box import BlackBoxMixin, file_of, read_weights, require, work_of
from ktbench.peers.llama.script import Script, write_script
from ktbench.peers.llama.settings import LlamaSettings, first_settings, walks
from ktbench.peers.tuning import Tuned, Tuner
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec

_MOST_RUNNERS = 4
# Positions that the contexts of other workloads may hold together: 1.6 GB of keys and values for Qwen3-30B-A3B.
_MOST_CELLS = 16_384


class Calls:
    """A script with its batches prepared, for every context that runs it."""

    def __init__(self, library: LlamaLibrary, script: Script) -> None:
        self.script = script
        self.prompt = tuple(Batch(library, layout) for layout in script.prompt)
        self.steps = tuple(tuple(Batch(library, layout) for layout in calls) for calls in script.steps)


class Runner:
    """Opens a `context` and runs the prompt of a decode workload through it. Raises like `Model.open` and `Context`."""

    def __init__(self, model: Model, calls: Calls, settings: LlamaSettings) -> None:
        script = calls.script
        self.cells = script.cells
        self._calls, self._prompt = calls, script.workload.prompt if script.prompt else 0
        self.context = model.open(script, settings)
        self.done = 0
        for batch in calls.prompt:
            self.context.decode(batch)
        self.context.finish()

    def start(self) -> None:
        """Return to step 0: for decode, the memory then holds the prompt and nothing after it.

        Raises Unsupported for a model whose memory cannot go back, such as a recurrent state.
        """
        if not self.context.keep(self._prompt):
            raise Unsupported("llama.cpp cannot take this model's memory back to where its prompt ended")
        self.context.restart_clock()
        self.done = 0

    def step(self) -> None:
        """Run the calls of the next step and wait for them. A prefill begins with an empty memory.

        Raises ValueError past the last step of the workload.
        """
        if self.done == len(self._calls.steps):
            raise ValueError(f"workload.steps={self.done}: all were done, start again")
        if not self._prompt:
            self.context.forget()
        for batch in self._calls.steps[self.done]:
            self.context.decode(batch)
        self.context.finish()
        self.done += 1

    @property
    def own_step_s(self) -> float:
        """Mean seconds of the steps since `start` by llama.cpp's own clock."""
        return self.context.own_s / self.done


class Trials:
    """Implements `ktbench.peers.tuning.Bench[LlamaSettings]`: at most two contexts are open at a time.

    `runner` is the last prepared one.
    """

    def __init__(self, model: Model, calls: Calls) -> None:
        self._model, self._calls = model, calls
        self._runners: dict[tuple[int, bool], Runner] = {}

    def prepare(self, settings: LlamaSettings) -> None:
        if settings.context not in self._runners:
            self._runners[settings.context] = Runner(self._model, self._calls, settings)
        self.runner = self._runners[settings.context]
        self.runner.context.use(settings.threads)
        self.runner.start()

    def step(self) -> None:
        if self.runner.done == len(self._calls.steps):
            self.runner.start()
        self.runner.step()

    def keep(self, settings: LlamaSettings) -> None:
        self._close_all_but(settings.context)

    def close(self) -> None:
        """Close every context."""
        self._close_all_but(None)

    def _close_all_but(self, kept: tuple[int, bool] | None) -> None:
        for other in [key for key in self._runners if key != kept]:
            self._runners.pop(other).context.close()


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> LlamaSystem:
    """llama.cpp with the GGUF file of these cells. Raises Unsupported for another precision, else like `open_llama`."""
    file = file_of(specs[0])
    return open_llama(file.path, specs[0].model, host, file.weights)


def open_llama(path: Path, model: ModelSpec, host: HostRole, weights: str | None = None) -> LlamaSystem:
    """llama.cpp with the weights of the GGUF file at `path` in memory, on the cores of `host`.

    `weights` is the required digest in the file (None: any). Raises ValueError in one line for a file that is
    incomplete or holds other weights or another model, and if this thread may not run on all those cores, which its
    threads would share; ImportError without llama-cpp-python; MemoryError.
    """
    header = read_weights(path, weights)
    if len(os.sched_getaffinity(0)) < host.cores:
        raise ValueError(f"llama.cpp: this thread may run on {len(os.sched_getaffinity(0))} of {host.cores} cores")
    loaded = Model(LlamaLibrary.load(), path)
    try:
        _require_same(path, "layers", loaded.layers, model.shape.layers)
        _require_same(path, "tokens in its vocabulary", loaded.vocab, model.shape.vocab)
    except ValueError:
        loaded.close()
        raise
    return LlamaSystem(loaded, model, host, header)


def _require_same(path: Path, what: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ValueError(f"{path}: has {actual} {what}, the model has {expected}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A workload that is tuned and ready to run."""

    runner: Runner
    tuned: Tuned[LlamaSettings]


class LlamaSystem(BlackBoxMixin):
    """Implements `ktbench.engine.protocol.System`; made by `open_llama`."""

    name = "llama.cpp"

    def __init__(self, loaded: Model, model: ModelSpec, host: HostRole, header: GgufHeader) -> None:
        self.model, self._loaded, self._host, self._header = model, loaded, host, header
        self._tuned: dict[tuple[WorkloadSpec, int], Tuned[LlamaSettings]] = {}
        self._ready: dict[tuple[WorkloadSpec, int], Ready] = {}  # most recently used last
        self._workload: WorkloadSpec | None = None

    def configure(self, spec: RunSpec) -> None:
        """See `System`. The first trial of a workload tries llama.cpp's settings for `peer.tune_s` seconds."""
        require(spec, self._loaded.library.most_sequences)
        key = spec.workload, self._host.threads_of(spec.engine)
        ready = self._ready.pop(key, None)
        if ready is None:
            calls = Calls(self._loaded.library, write_script(spec.workload, self.model.shape.vocab))
            self._make_room(calls.script.cells)
            ready = self._prepare(calls, key[1], self._tuned.get(key), spec.peer.tune_s)
        self._tuned[key], self._ready[key] = ready.tuned, ready
        self._current, self._workload = ready, spec.workload
        self.start()

    def _make_room(self, cells: int) -> None:
        """Closes the least recently used contexts; their settings are kept."""
        while self._ready and (len(self._ready) >= _MOST_RUNNERS or self._cells + cells > _MOST_CELLS):
            self._ready.pop(next(iter(self._ready))).runner.context.close()

    @property
    def _cells(self) -> int:
        return sum(ready.runner.cells for ready in self._ready.values())

    def _prepare(self, calls: Calls, cores: int, tuned: Tuned[LlamaSettings] | None, budget_s: float) -> Ready:
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
        """See `System`. Decode removes everything after the prompt from the memory."""
        self._current.runner.start()

    def step(self) -> None:
        """See `System`. A prefill step begins with clearing the table of positions, which takes microseconds."""
        self._current.runner.step()

    def logits(self) -> NDArray[np.float32]:
        return self._current.runner.context.logits()

    def notes(self) -> tuple[str, ...]:
        """How it was tuned, its build and its weights."""
        library, ready = self._loaded.library, self._current
        return (
            ready.tuned.explain(f"llama.cpp {library.version}"),
            f"llama.cpp {library.version} built for {library.flags}; weights {self._loaded.description}, "
            "keys and values F16",
        )

    def own_step_s(self) -> float:
        """See `HasClock`; from llama_perf_context, over the steps since `start`."""
        return self._current.runner.own_step_s

    def work(self) -> Work | None:
        """See `System`; see `work_of`."""
        assert self._workload is not None
        return work_of(self._workload, self.model.shape, self._header.tensors.values())

    def close(self) -> None:
        while self._ready:
            self._ready.popitem()[1].runner.context.close()
        self._loaded.close()
