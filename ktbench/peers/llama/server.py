"""llama.cpp's own server under a stream of requests: started on a free port, tuned to the stream, ended at close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ktbench.engine.protocol import HostRole, configured
from ktbench.engine.serving.requests import ServeRequest, TokenEvent
from ktbench.engine.workload.stream import StreamRequest, draw_stream, longest_request
from ktbench.peers.llama.black_box import file_of, read_weights
from ktbench.peers.llama.program import RunningServer
from ktbench.peers.llama.settings import LlamaSettings, first_settings, walks
from ktbench.peers.openai import OpenAIServing
from ktbench.peers.tuning import Tuned, Tuner
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.pages import whole_cells

_NAME = "llama-server"
# The server gets this share of the loading deadline, so that its own message is the reason if it is too slow.
_PATIENCE = 0.8
# Time between the end of its connections and that of the process.
_GRACE_S = 1.0
# Tokens of each answer in a tuning step.
_TUNING_ANSWER = 4


def open_serving(specs: Sequence[RunSpec], host: HostRole) -> LlamaServing:
    """The server of `peer.llama_server` on the GGUF file of these cells, with room for the maximum of any of them.

    Raises ValueError for a file that is incomplete or holds other weights, Unsupported for one of another precision and
    if the server does not start.
    """
    spec = specs[0]
    assert spec.peer.llama_server is not None  # otherwise its cells do not run
    file = file_of(spec)
    read_weights(file.path, file.weights)
    streams = [draw_stream(other.workload, other.model.shape.vocab) for other in specs]
    launch = Launch(
        program=spec.peer.llama_server,
        file=file.path,
        slots=Slots.for_cells(specs, streams),
        limit_s=_PATIENCE * spec.measure.load_timeout_s,
    )
    trials = Trials(launch, max(streams, key=len))
    try:
        return _tune(trials, host.threads_of(spec.engine), spec.peer.tune_s)
    except BaseException:
        trials.close()
        raise


def _tune(trials: Trials, cores: int, budget_s: float) -> LlamaServing:
    """The server on the settings that serve the first requests of a stream fastest."""
    first = first_settings(cores, trials.prompt_tokens)
    begin = ServerSettings(threads=first.threads, ubatch=first.ubatch, flash=first.flash)
    tuned = Tuner(trials, budget_s).tune(begin, walks(cores, trials.prompt_tokens))
    engine = configured(trials.engine)
    engine.tuned = tuned
    return engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """The server's capacity: `requests` at once, each of up to `tokens` including its answer."""

    requests: int
    tokens: int

    @classmethod
    def for_cells(cls, specs: Sequence[RunSpec], streams: Sequence[Sequence[StreamRequest]]) -> Slots:
        """For the most concurrent requests in any of the cells, within their limits, and the longest request of any."""
        return cls(
            requests=max(spec.most_at_once for spec in specs),
            tokens=whole_cells(1 + max(map(longest_request, streams))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings(LlamaSettings):
    """Settings for which a change, even of threads, needs a new server."""

    @property
    def context(self) -> tuple[int, int, bool]:  # type: ignore[override]
        """The settings with which a server is started."""
        return self.threads, self.ubatch, self.flash


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The parameters that all tried settings share; `limit_s` is how long the server may take to be ready."""

    program: str
    file: Path
    slots: Slots
    limit_s: float

    def start(self, settings: ServerSettings) -> RunningServer:
        """Raises Unsupported with its last lines if it ends or is not ready in time."""
        running = RunningServer([self.program, *self._options(settings)])
        try:
            running.wait_ready(self.limit_s)
        except BaseException:
            running.end()
            raise
        return running

    def _options(self, settings: ServerSettings) -> list[str]:
        options = {
            "-m": self.file,
            "-np": self.slots.requests,
            "-c": self.slots.requests * self.slots.tokens,
            "-t": settings.threads,
            "-ub": settings.ubatch,
            "-fa": "on" if settings.flash else "off",
            "-ctk": "f16",
            "-ctv": "f16",
            "-ngl": 0,
        }
        return [str(word) for option in options.items() for word in option]


class LlamaServing(OpenAIServing):
    """Implements `ServingEngine` with its own server; `tuned` says how its settings were chosen."""

    def __init__(self, running: RunningServer, slots: Slots) -> None:
        super().__init__(running.address, _NAME, slots.tokens)
        self._running_server = running
        self.tuned: Tuned[ServerSettings] | None = None
        self._built = (
            f"{_NAME} of build {running.build()} takes {slots.requests} requests at once, each of up to {slots.tokens} "
            "tokens; keys and values F16, nothing of earlier prompts kept"
        )

    def step(self) -> list[TokenEvent]:
        """See `ServingEngine`. Raises RuntimeError if the server has ended."""
        events = super().step()
        failed = any(event.finish == "error" for event in events)
        if (failed or not events) and (why := self._running_server.ending(_GRACE_S if failed else 0.0)):
            raise RuntimeError(why)
        return events

    def notes(self) -> tuple[str, ...]:
        """How it was tuned, its build and its capacity."""
        return (*(() if self.tuned is None else (self.tuned.explain(_NAME),)), self._built)

    def close(self) -> None:
        """End the server."""
        super().close()
        self._running_server.end()


class Trials:
    """Implements `ktbench.peers.tuning.Bench[ServerSettings]`: one server at a time, a step fills all of its slots."""

    def __init__(self, launch: Launch, stream: Sequence[StreamRequest]) -> None:
        self._launch = launch
        self._requests = [
            ServeRequest(key=str(number), prompt=request.tokens, max_new=min(request.answer, _TUNING_ANSWER))
            for number, request in enumerate(stream[: launch.slots.requests])
        ]
        self._settings: ServerSettings | None = None
        self.engine: LlamaServing | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts of a step."""
        return sum(len(request.prompt) for request in self._requests)

    def prepare(self, settings: ServerSettings) -> None:
        if settings != self._settings:
            self.close()
            self.engine, self._settings = LlamaServing(self._launch.start(settings), self._launch.slots), settings

    def step(self) -> None:
        """See `Bench`. Raises RuntimeError for a request that fails."""
        engine, left = configured(self.engine), len(self._requests)
        for request in self._requests:
            engine.submit(request)
        while left:
            for event in engine.step():
                if event.finish == "error":
                    raise RuntimeError(f"{_NAME}: {event.why}")
                left -= event.finish is not None

    def keep(self, settings: ServerSettings) -> None:
        """See `Bench`: there is no other server."""

    def close(self) -> None:
        """End the server."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self._settings = None
