"""llama.cpp's own benchmark program as a system: it times itself, and shows times alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NoReturn

from ktbench.engine.gguf.header import Header
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.llama.file import read_weights
from ktbench.peers.llama.limits import cores_of, require
from ktbench.peers.llama.program import Lists, Program
from ktbench.peers.llama.rows import Row
from ktbench.peers.llama.settings import Settings, Walk, first_settings, walks
from ktbench.peers.llama.tuning import Trial, Tuned
from ktbench.peers.llama.unseen import Unseen
from ktbench.peers.llama.work import work_of
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec


def open_llama_bench(
    program: str, path: Path, model: ModelSpec, host: HostRole, weights: str | None = None
) -> LlamaBench:
    """`program` on the GGUF file at `path`, with at most the cores of `host`.

    `weights` is the digest that the file has to name as its own (None: any). Raises ValueError as `read_weights`.
    """
    return LlamaBench(Program(program=program, file=path), model, host, read_weights(path, weights))


class LlamaBench(Unseen):
    """A `System` that cannot be stepped: `own_samples_s` runs the program and gives what it has timed."""

    name = "llama-bench"

    def __init__(self, program: Program, model: ModelSpec, host: HostRole, header: Header) -> None:
        self.model, self._program, self._host, self._header = model, program, host, header
        self._tuned: dict[tuple[WorkloadSpec, int], Tuned] = {}
        self._spec: RunSpec | None = None
        self._row: Row | None = None

    def configure(self, spec: RunSpec) -> None:
        """See `System`. The first turn at a workload tries its settings for `peer.tune_s` seconds."""
        require(spec, most_sequences=1)
        key = spec.workload, cores_of(spec, self._host)
        if key not in self._tuned:
            self._tuned[key] = tune(self._program, spec, key[1])
        self._settings, self._spec, self._row = self._tuned[key], spec, None

    def own_samples_s(self) -> tuple[float, ...]:
        """Seconds of the steps as llama-bench timed them, on token ids of its own.

        Of a prefill one for each step, of a decode one that is the mean over all steps. Raises RuntimeError with the
        program's last line where it fails, or takes longer than the deadline of a turn.
        """
        spec = self._configured
        lists = _lists(self._settings.settings)
        rows = self._program.run(spec.workload, lists, spec.measure.turn_timeout_s)
        if len(rows) != 1:
            raise RuntimeError(f"llama-bench printed {len(rows)} rows for one test")
        self._row = rows[0]
        return _step_samples_s(self._row, spec.workload)

    @property
    def _configured(self) -> RunSpec:
        assert self._spec is not None
        return self._spec

    def start(self) -> None:
        """Nothing: every run of the program begins anew."""

    def step(self) -> NoReturn:
        """Raises Unsupported: a run of the program loads the weights, too."""
        raise Unsupported("llama-bench times its own steps, see own_samples_s")

    def logits(self) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("llama-bench shows no logits")

    def notes(self) -> tuple[str, ...]:
        """How it was tuned; what it was built for and holds; what its samples are."""
        tuned = self._settings.told("llama-bench")
        if self._row is None:
            return (tuned,)
        row, work = self._row, self._configured.workload
        sample = "one for each prompt" if work.phase == "prefill" else f"the mean of {work.steps} tokens"
        built = (
            f"llama-bench of build {row.build} for {row.backends}; weights {row.weights}, keys and values {row.cache}"
        )
        return tuned, built, f"timed by llama-bench itself, {sample}, on token ids of its own"

    def work(self) -> Work | None:
        """See `System`; see `work_of`."""
        return work_of(self._configured.workload, self.model.shape, self._header.tensors.values())

    def close(self) -> None:
        """Nothing: no program runs between turns."""


def tune(program: Program, spec: RunSpec, cores: int) -> Tuned:
    """Tries the settings of each walk in one run of the program, which is ended when `peer.tune_s` is over.

    The first settings are tried whatever they take. Raises as `Program.run`.
    """
    work, budget_s, began_s = spec.workload, spec.peer.tune_s, perf_counter()
    first = first_settings(cores, work.prompt)
    if not budget_s:
        return Tuned(settings=first)
    trials = _trials(program.run(work, _lists(first), spec.measure.turn_timeout_s), work)
    for walk in walks(cores, work.tokens_per_step):
        left_s = budget_s - (perf_counter() - began_s)
        if walk and left_s > 0:
            trials += _trials(program.run_for(work, _around(_best(trials), walk), left_s), work)
    return Tuned(settings=_best(trials), took_s=perf_counter() - began_s, trials=tuple(trials))


def _best(trials: list[Trial]) -> Settings:
    return min(trials, key=lambda trial: trial.step_s).settings


def _trials(rows: tuple[Row, ...], workload: WorkloadSpec) -> list[Trial]:
    return [Trial(settings=row.settings, step_s=median(_step_samples_s(row, workload))) for row in rows]


def _step_samples_s(row: Row, workload: WorkloadSpec) -> tuple[float, ...]:
    """Raises RuntimeError where there are not as many samples as asked for."""
    asked = workload.steps if workload.phase == "prefill" else 1
    if len(row.samples_s) != asked:
        raise RuntimeError(f"llama-bench printed {len(row.samples_s)} samples, asked for were {asked}")
    tokens = 1 if workload.phase == "prefill" else workload.steps
    return tuple(sample_s / tokens for sample_s in row.samples_s)


def _lists(settings: Settings) -> Lists:
    return Lists(threads=(settings.threads,), ubatch=(settings.ubatch,), flash=(settings.flash,))


def _around(best: Settings, walk: Walk) -> Lists:
    """All of a walk in one run, everything else as it is best so far."""
    changes = {name: tuple(change[name] for change in walk) for name in walk[0]}
    return replace(_lists(best), **changes)
