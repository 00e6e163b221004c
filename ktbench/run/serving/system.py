"""A serving engine as a system under test: a step is a block of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from time import perf_counter, sleep
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.protocol import ExpertsObservation, Unsupported, configured
from ktbench.engine.serving.requests import Sampling, ServingEngine, TieredCache
from ktbench.engine.workload.stream import StreamRequest, draw_stream, longest_request
from ktbench.run.serving.answers import Ids, Logits, ReplayedRequest, alone, difference, logits_alone, sample_numbers
from ktbench.run.serving.driver import Driver
from ktbench.spec.engine import ServingSpec
from ktbench.spec.features import FeatureValue
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.serving.replay import Replay
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.timeline import Timeline

# Opens the engine of a spec with the contents of its prefix cache on disk.
OpenServing = Callable[[RunSpec], ServingEngine]


def _has_cache(spec: RunSpec) -> bool:
    """Whether earlier requests may speed up a request; unknown for an external server."""
    return spec.engine.prefix_cache or (spec.system != OURS and peer_of(spec.system).remote)


class StreamSystem:
    """Replays the stream of a cell on an engine from `open_serving`, reopened when features or limits change.

    The prefix cache's files are in a separate folder inside that of the spec, and are removed by `close`.
    """

    def __init__(
        self,
        open_serving: OpenServing,
        clock: Callable[[], float] = perf_counter,
        rest: Callable[[float], None] = sleep,
    ) -> None:
        self._open_serving, self._clock, self._rest = open_serving, clock, rest
        self._spec: RunSpec | None = None
        self._stream: tuple[StreamRequest, ...] = ()
        self._engine: ServingEngine | None = None
        self._driver: Driver | None = None
        self._cached: WorkloadSpec | None = None  # whose requests the prefix cache knows
        self._alone: dict[tuple[object, Ids, Ids], Logits] = {}
        self._disk: Path | None = None
        self._steps = 0
        self._counted: Mapping[str, int] = {}
        self._notes: tuple[str, ...] = ()

    def configure(self, spec: RunSpec) -> None:
        """Draw the stream and open the engine. Raises Unsupported if a request has more tokens than it accepts."""
        before, self._spec = self._spec, spec
        if self._stream_spec().temperature and spec.system != OURS:
            raise Unsupported(f"workload.stream.temperature: {spec.system} is asked for the likeliest tokens alone")
        if before is None or before.workload.without_start != spec.workload.without_start:
            self._stream = draw_stream(spec.workload, spec.model.shape.vocab)
            self._alone.clear()
        if self._engine is None or before is None or before.engine != spec.engine:
            self._open(empty=True)
        longest, most = longest_request(self._stream), configured(self._engine).max_positions
        if longest > most:
            raise Unsupported(f"a request has {longest} tokens with its answer, the engine takes {most}")

    def start(self) -> None:
        """Make the engine idle, with the requested state of its prefix cache."""
        spec, stream = configured(self._spec), self._stream_spec()
        if _has_cache(spec):
            self._prepare(stream)
        self._begin()

    def step(self) -> None:
        """Serve the next block of requests."""
        self._steps += 1
        blocks = configured(self._spec).workload.steps
        configured(self._driver).run_until(len(self._stream) * self._steps // blocks)

    def replay(self) -> Replay:
        """The driver's times of all blocks, and the engine's counts of its own time."""
        moved = {name: count - self._counted.get(name, 0) for name, count in self.counters().items()}
        share = moved["scheduler_ns"] / moved["step_ns"] if moved.get("step_ns") else None
        return replace(configured(self._driver).replay(), scheduler_share=share)

    def differing(self, tolerance: float) -> str:
        """Why a sample of the answers differs from the engine's answers to single requests; empty if it does not.

        A single request is computed as a whole, whatever the prefix cache holds. For a peer, whose rounding is not
        known, differences are a note.
        """
        seen = self._sampled_requests()
        if configured(self._spec).system != OURS:
            engine = configured(self._engine)
            same = sum(alone(engine, request.prompt, len(request.answer)) == request.answer for request in seen)
            self._notes = (f"{same} of {len(seen)} answers are those to the same requests alone",)
            return ""
        return next(filter(None, (difference(request, self._expected(request), tolerance) for request in seen)), "")

    def passed_mutant(self, tolerance: float) -> str:
        """A mutant that `differing` would pass: logits of another request; empty if it rejects all of them.

        With a single request: its logits without the first half of its prompt.
        """
        seen = self._sampled_requests()
        if configured(self._spec).system != OURS:
            return ""
        for request in seen:
            for what, logits in self._mutants(request, seen):
                length = min(len(request.answer), len(logits))
                mutant = replace(request, answer=request.answer[:length], logits=logits[:length])
                if not difference(mutant, self._expected(request)[:length], tolerance):
                    return f"request {request.number}: the check would pass the logits {what}"
        return ""

    def _sampled_requests(self) -> tuple[ReplayedRequest, ...]:
        answers = configured(self._driver).answers
        return tuple(answers[number] for number in sample_numbers(len(answers)))

    def _expected(self, request: ReplayedRequest) -> Logits:
        """The logits [T, V] before each token of its answer as a single request; serving features do not alter them."""
        engine = configured(self._spec).engine
        key = (replace(engine.without_serving, serving=ServingSpec()), request.prompt, request.answer)
        if key not in self._alone:
            self._alone[key] = logits_alone(configured(self._engine), request.prompt, request.answer)
        return self._alone[key]

    def _mutants(self, request: ReplayedRequest, seen: Sequence[ReplayedRequest]) -> Iterator[tuple[str, Logits]]:
        for other in seen:
            if other.prompt != request.prompt:
                yield f"of request {other.number}", other.logits
        if len(seen) == 1:
            half = replace(request, prompt=request.prompt[len(request.prompt) // 2 :])
            yield "without the first half of its prompt", self._expected(half)

    def logits(self) -> NDArray[np.float32]:
        """Raises Unsupported: requests return tokens."""
        raise Unsupported("workload.phase=serve gives tokens, not logits")

    def observe(self, _step: int | None = None, _seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        """None: whole answers are compared instead."""
        return ()

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """Raises Unsupported: whole answers are compared instead."""
        raise Unsupported("workload.phase=serve compares whole answers")

    def counters(self) -> Mapping[str, int]:
        """Those of the engine."""
        return configured(self._engine).counters()

    def timeline(self) -> Timeline:
        """Raises Unsupported."""
        raise Unsupported("workload.phase=serve has no single step to draw, set workload=decode or prefill")

    def chosen(self) -> Mapping[str, FeatureValue]:
        """Features off for a single user: no step has tokens of several requests, and nothing is cached for one."""
        stream = self._stream_spec()
        off: dict[str, FeatureValue] = {}
        if not stream.is_open and stream.concurrency == 1:
            off |= {"batching": False, "static_batch": 0}
        if stream.requests == 1 and stream.cache == "cold":
            off["prefix_cache"] = False
        return off

    def notes(self) -> tuple[str, ...]:
        """The engine's notes, and how many answers of a peer equal those to single requests."""
        return (*configured(self._engine).notes(), *self._notes)

    def work(self) -> None:
        """Unknown: it depends on which requests share a step."""

    def close(self) -> None:
        """Close the engine and remove the files of its prefix cache."""
        self._close()
        if self._disk is not None:
            rmtree(self._disk, ignore_errors=True)
            self._disk = None

    def _stream_spec(self) -> StreamSpec:
        stream = configured(self._spec).workload.stream
        assert stream is not None
        return stream

    def _prepare(self, stream: StreamSpec) -> None:
        """Fill the prefix cache on the level that the stream requests."""
        requests = configured(self._spec).workload.without_start
        if self._cached is not None and (stream.cache == "cold" or self._cached != requests):
            self._forget_cached()
        if stream.cache == "cold":
            return
        if self._cached != requests:
            self._begin()
            configured(self._driver).run_until(len(self._stream))
        if stream.cache == "restarted":
            self._open(empty=False)
        elif stream.cache != "warm":
            engine = configured(self._engine)
            if not isinstance(engine, TieredCache):
                raise Unsupported(f"workload.stream.cache={stream.cache}: its prefix cache is not ours to move")
            engine.move_cached(to_disk=stream.cache == "disk")

    def _forget_cached(self) -> None:
        """Empty the prefix cache. An engine without a disk level stays open: a new one would have to warm up again."""
        engine, serving = configured(self._engine), configured(self._spec).engine.serving
        if serving.disk is None and isinstance(engine, TieredCache):
            engine.forget_cached()
            self._cached = None
        else:
            self._open(empty=True)

    def _begin(self) -> None:
        spec = configured(self._spec)
        self._driver = Driver(
            engine=configured(self._engine),
            stream=self._stream,
            concurrency=self._stream_spec().concurrency,
            watched=sample_numbers(len(self._stream)) if spec.system == OURS else (),
            sampling=Sampling(temperature=self._stream_spec().temperature, seed=spec.workload.seed),
            clock=self._clock,
            sleep=self._rest,
        )
        self._counted = dict(self.counters())
        self._steps, self._cached = 0, spec.workload.without_start

    def _open(self, *, empty: bool) -> None:
        """A new engine; `empty`: with nothing in its prefix cache, not even on disk."""
        if empty:
            self.close()
            self._cached = None
        self._close()
        self._engine = self._open_serving(self._on_disk(configured(self._spec)))

    def _on_disk(self, spec: RunSpec) -> RunSpec:
        serving = spec.engine.serving
        if serving.disk is None or spec.system != OURS:
            return spec
        self._disk = self._disk or Path(serving.disk) / f"replay-{uuid4().hex[:8]}"
        return replace(spec, engine=replace(spec.engine, serving=replace(serving, disk=str(self._disk))))

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
