"""Counts and times of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ktbench.serve.driver import EngineThread

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What `/metrics` shows of one server."""

    def __init__(self, engine: EngineThread) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineMetrics(engine))
        self._responses = Counter(
            "ktbench_http_responses", "Answers by path and status.", ("path", "status"), registry=self._registry
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts of requests that have ended.")
        self._new = self._counter("completion_tokens", "Tokens generated for requests that have ended.")
        self._cached = self._counter("cached_prompt_tokens", "Tokens of prompts that came from the prefix cache.")
        self.first_token_s = self._histogram("time_to_first_token_seconds", "From a request to its first token.")
        self.between_tokens_s = self._histogram("time_between_tokens_seconds", "Between tokens of one request.")

    def responded(self, path: str, status: int) -> None:
        """Count an answer."""
        self._responses.labels(path, str(status)).inc()

    def answered(self, prompt: int, new: int, cached: int) -> None:
        """Count the tokens of a request that has ended."""
        self._prompt.inc(prompt)
        self._new.inc(new)
        self._cached.inc(cached)

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"ktbench_{name}", what, registry=self._registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(f"ktbench_{name}", what, buckets=_SECONDS, registry=self._registry)


class _EngineMetrics(Collector):
    """Where the engine stands, and its counters."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All that is known of the engine after its last step."""
        yield GaugeMetricFamily("ktbench_engine_up", "Whether the engine serves.", value=self._engine.failure is None)
        snapshot = self._engine.snapshot
        if snapshot is None:
            return
        state = snapshot.state
        for name, what, value in (
            ("requests_waiting", "Requests that wait.", state.waiting),
            ("requests_running", "Requests that run.", state.running),
            ("cache_pages", "Pages of keys and values.", state.pages),
            ("cache_pages_free", "Pages that are free.", state.free_pages),
            ("cache_pages_cached", "Pages that only the prefix cache holds.", state.cached_pages),
        ):
            yield GaugeMetricFamily(f"ktbench_{name}", what, value=value)
        counters = CounterMetricFamily("ktbench_engine_count", "Counters of the engine by name.", labels=["name"])
        for name, value in sorted(snapshot.counters.items()):
            counters.add_metric([name], value)
        yield counters
