"""llama.cpp's own benchmark program as a system: it measures its own times and exposes nothing else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from ktbench.engine.gguf.header import GgufHeader
from ktbench.engine.protocol import HostRole, Unsupported, configured
from ktbench.peers.llama.black_box import BlackBoxMixin, file_of, read_weights, require, work_of
from ktbench.peers.llama.program import tie_to_parent
from ktbench.peers.llama.settings import LlamaSettings, first_settings, walks
from ktbench.peers.tuning import Trial, Tuned, search
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.wire import from_plain

B = TypeVar("B", bound="LlamaBench")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One test: its settings, seconds of each repetition, and the program's own description."""

    settings: LlamaSettings
    samples_s: tuple[float, ...]
    build: str
    backends: str
    weights: str
    cache: str
    options: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """What differs between llama.cpp's program and a fork's.

    `options` requests the test of a workload and the form of the output, in which `row` matches each complete row. The
    first `warm_ups` repetitions of a prefill are left out. `shown` are the settings of a row that appear in notes.
    """

    options: Callable[[WorkloadSpec], Mapping[str, object]]
    row: re.Pattern[str]
    warm_ups: int = 0
    shown: tuple[str, ...] = ()


def _options(workload: WorkloadSpec) -> dict[str, object]:
    prefill = workload.phase == "prefill"
    return {
        "-p": workload.prompt if prefill else 0,
        "-n": 0 if prefill else workload.steps,
        "-d": 0 if prefill else workload.prompt,
        "-r": workload.steps if prefill else 1,
        "-o": "jsonl",
    }


LLAMA_CPP = Dialect(options=_options, row=re.compile(r"^\{.*\n", re.MULTILINE))


def read_rows(output: str, dialect: Dialect = LLAMA_CPP) -> tuple[BenchRow, ...]:
    """The rows of an output, in order; an incomplete last one, from a program that was ended, is left out.

    Raises ValueError in one line for a row without samples or settings.
    """
    return tuple(_row(text, dialect.shown) for text in dialect.row.findall(output))


_Count = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Printed:
    """Required fields of a row, by the program's names; older programs have a flag for each backend except the CPU."""

    n_threads: _Count
    n_ubatch: _Count
    flash_attn: bool | int
    samples_ns: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1)]
    build_commit: str = "unknown"
    backends: str = ""
    model_type: str = "unknown"
    type_k: str = "unknown"
    type_v: str = "unknown"


def _row(text: str, shown: Iterable[str]) -> BenchRow:
    try:
        content = msgspec.json.decode(text)
        row = from_plain(content, _Printed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"llama-bench printed a row that cannot be read: {error}") from None
    flags = [name for name in ("blas", "cuda", "metal", "sycl", "vulkan") if name in content]
    return BenchRow(
        settings=LlamaSettings(threads=row.n_threads, ubatch=row.n_ubatch, flash=bool(row.flash_attn)),
        samples_s=tuple(sample / 1e9 for sample in row.samples_ns),
        build=row.build_commit,
        backends=row.backends or (", ".join(filter(content.get, flags)) or "CPU" if flags else "unknown"),
        weights=row.model_type,
        cache=f"{row.type_k} and {row.type_v}",
        options="".join(f", {name} {'on' if content.get(name) else 'off'}" for name in shown),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """llama-bench and the GGUF file to load."""

    program: str
    file: Path
    dialect: Dialect = LLAMA_CPP

    def run(
        self, workload: WorkloadSpec, candidates: Sequence[LlamaSettings], limit_s: float, *, whole: bool = True
    ) -> tuple[BenchRow, ...]:
        """A row for each of several settings that differ in at most one field.

        After `limit_s` seconds the program is ended. Raises ValueError if it cannot be run; if it fails or is ended,
        raises RuntimeError with its last line if `whole`, else returns the completed rows.
        """
        command = [self.program, "-m", str(self.file), *options(workload, candidates, self.dialect)]
        why = ""
        try:
            ended = subprocess.run(
                command, capture_output=True, timeout=limit_s, check=False, preexec_fn=tie_to_parent()
            )
            output = _text(ended.stdout)
            if ended.returncode:
                why = f"llama-bench exited with {ended.returncode}: {_last_line(ended.stderr)}"
        except subprocess.TimeoutExpired as late:
            output = _text(late.stdout)
            why = f"llama-bench took more than {limit_s:g} s: {_last_line(late.stderr or late.stdout)}"
        except OSError as error:
            raise ValueError(f"{self.program}: cannot be run: {error.strerror}") from None
        if whole and why:
            raise RuntimeError(why)
        return read_rows(output, self.dialect)

    def step_samples_s(self, row: BenchRow, workload: WorkloadSpec) -> tuple[float, ...]:
        """Seconds of each step except warm-ups. Raises RuntimeError if the number of samples is not the requested
        one."""
        requested = int(str(self.dialect.options(workload)["-r"]))
        if len(row.samples_s) != requested:
            raise RuntimeError(f"llama-bench printed {len(row.samples_s)} samples, {requested} were expected")
        if workload.phase == "prefill":
            return row.samples_s[self.dialect.warm_ups :]
        return tuple(sample_s / workload.steps for sample_s in row.samples_s)


def options(
    workload: WorkloadSpec, candidates: Sequence[LlamaSettings], dialect: Dialect = LLAMA_CPP
) -> tuple[str, ...]:
    """Its options for a workload of one sequence; settings that differ in at most one field become a list.

    A prefill is one test with a repetition per step, a decode one test that generates a token per step at context depth
    `prompt`: llama-bench does not report single tokens.
    """
    tried: dict[str, object] = {
        "-b": max(workload.prompt, *(candidate.ubatch for candidate in candidates)),
        "-ub": _distinct(candidate.ubatch for candidate in candidates),
        "-t": _distinct(candidate.threads for candidate in candidates),
        "-fa": _distinct(int(candidate.flash) for candidate in candidates),
    }
    fixed = {"-ctk": "f16", "-ctv": "f16", "-ngl": "0"}
    chosen = {**dialect.options(workload), **tried, **fixed}
    return tuple(word for name, value in chosen.items() for word in (name, str(value)))


def _distinct(values: Iterable[int]) -> str:
    """llama-bench runs a test for each value of a list, in order."""
    return ",".join(map(str, dict.fromkeys(values)))


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _last_line(output: bytes | str | None) -> str:
    lines = _text(output).strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> LlamaBench:
    """The program of `peer.llama_bench` on the GGUF file of these cells, with at most the cores of `host`.

    Raises ValueError for a file that is incomplete or holds other weights, Unsupported for one of another precision.
    """
    program = specs[0].peer.llama_bench
    assert program is not None  # otherwise its cells do not run
    return open_program(LlamaBench, program, LLAMA_CPP, specs[0], host)


def open_program(kind: type[B], program: str, dialect: Dialect, spec: RunSpec, host: HostRole) -> B:
    """A system that runs a program; raises like `open_peer`."""
    file = file_of(spec)
    header = read_weights(file.path, file.weights)
    return kind(Program(program=program, file=file.path, dialect=dialect), spec.model, host, header)


class LlamaBench(BlackBoxMixin):
    """A `System` that cannot be stepped: `own_samples_s` runs the program and returns its times."""

    name = "llama-bench"

    def __init__(self, program: Program, model: ModelSpec, host: HostRole, header: GgufHeader) -> None:
        self.model, self._program, self._host, self._header = model, program, host, header
        self._tuned: dict[tuple[WorkloadSpec, int], Tuned[LlamaSettings]] = {}
        self._spec: RunSpec | None = None
        self._row: BenchRow | None = None

    def configure(self, spec: RunSpec) -> None:
        """See `System`. The first trial of a workload tries its settings for `peer.tune_s` seconds."""
        require(spec, most_sequences=1)
        key = spec.workload, self._host.threads_of(spec.engine)
        if key not in self._tuned:
            self._tuned[key] = tune(self._program, spec, key[1])
        self._settings, self._spec, self._row = self._tuned[key], spec, None

    def own_samples_s(self) -> tuple[float, ...]:
        """Seconds of the steps as timed by llama-bench, on its own token ids.

        For a prefill one value per step, for a decode the mean over all steps. Raises RuntimeError with the program's
        last line if it fails or takes longer than the deadline of a trial.
        """
        spec = configured(self._spec)
        rows = self._program.run(spec.workload, [self._settings.settings], spec.measure.turn_timeout_s)
        if len(rows) != 1:
            raise RuntimeError(f"llama-bench printed {len(rows)} rows for one test")
        self._row = rows[0]
        return self._program.step_samples_s(self._row, spec.workload)

    def start(self) -> None:
        """Nothing: every run of the program starts from scratch."""

    def step(self) -> NoReturn:
        """Raises Unsupported: a run of the program also loads the weights."""
        raise Unsupported("llama-bench times its own steps, see own_samples_s")

    def logits(self) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("llama-bench shows no logits")

    def notes(self) -> tuple[str, ...]:
        """How it was tuned, its build and weights, and what its samples are."""
        tuned = self._settings.explain(self.name)
        if self._row is None:
            return (tuned,)
        row, work = self._row, configured(self._spec).workload
        sample = "one for each prompt" if work.phase == "prefill" else f"the mean of {work.steps} tokens"
        built = (
            f"{self.name} of build {row.build} for {row.backends}; weights {row.weights}, "
            f"keys and values {row.cache}{row.options}"
        )
        return tuned, built, f"timed by llama-bench itself after loading, {sample}, on its own token ids"

    def work(self) -> Work | None:
        """See `System`; see `work_of`."""
        return work_of(configured(self._spec).workload, self.model.shape, self._header.tensors.values())

    def close(self) -> None:
        """Nothing: no program runs between trials."""


def tune(program: Program, spec: RunSpec, cores: int) -> Tuned[LlamaSettings]:
    """Tries the candidates of each walk in one run of the program, which is ended when `peer.tune_s` is over.

    The first settings are always tried. Raises like `Program.run`.
    """
    work = spec.workload

    def measure(
        best: Trial[LlamaSettings] | None, candidates: Sequence[LlamaSettings], left_s: float
    ) -> list[Trial[LlamaSettings]]:
        limit_s = spec.measure.turn_timeout_s if best is None else left_s
        rows = program.run(work, candidates, limit_s, whole=best is None)
        return [Trial(settings=row.settings, step_s=median(program.step_samples_s(row, work))) for row in rows]

    first = first_settings(cores, work.prompt)
    return search(first, walks(cores, work.tokens_per_step), spec.peer.tune_s, measure)
