"""Counts and times of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ktbench.engine.serving.requests import ServingState
from ktbench.serve.driver import EngineThread

# Names by which vLLM has the same, which dashboards read (docs.vllm.ai: production metrics).
_VLLM: Mapping[str, tuple[str, ...]] = {
    "ktbench_requests_running": ("num_requests_running",),
    "ktbench_requests_waiting": ("num_requests_waiting",),
    "ktbench_cache_usage": ("kv_cache_usage_perc",),  # a share, in vLLM as well
    "ktbench_preemptions": ("num_preemptions",),
    "ktbench_prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "ktbench_cached_prompt_tokens": ("prefix_cache_hits",),
    "ktbench_completion_tokens": ("generation_tokens",),
    "ktbench_answers": ("request_success",),
    "ktbench_answer_seconds": ("e2e_request_latency_seconds",),
    "ktbench_time_to_first_token_seconds": ("time_to_first_token_seconds",),
    # The second is the name until 0.11.
    "ktbench_time_between_tokens_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What `/metrics` shows of one server."""

    def __init__(self, engine: EngineThread, model: str) -> None:
        self._registry, self._vllm = CollectorRegistry(), CollectorRegistry()
        self._vllm.register(_VllmMetrics(self._registry, model))
        self._registry.register(_EngineMetrics(engine))
        self._responses = Counter(
            "ktbench_http_responses", "Answers by path and status.", ("path", "status"), registry=self._registry
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts of requests that have ended.")
        self._new = self._counter("completion_tokens", "Tokens generated for requests that have ended.")
        self._cached = self._counter("cached_prompt_tokens", "Tokens of prompts that came from the prefix cache.")
        self._answers = Counter(
            "ktbench_answers", "Answers that have ended, by reason.", ("finished_reason",), registry=self._registry
        )
        self._answer_s = self._histogram("answer_seconds", "From a request to the end of an answer.")
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

    def ended(self, reason: str, seconds: float) -> None:
        """Count an answer that has ended by itself."""
        self._answers.labels(reason).inc()
        self._answer_s.observe(seconds)

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self._registry) + generate_latest(self._vllm)

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
            ("cache_usage", "Share of pages that requests hold.", _used(state) / state.pages),
        ):
            yield GaugeMetricFamily(f"ktbench_{name}", what, value=value)
        preempted = snapshot.counters.get("preempted", 0)
        yield CounterMetricFamily("ktbench_preemptions", "Requests that made room for earlier ones.", value=preempted)
        counters = CounterMetricFamily("ktbench_engine_count", "Counters of the engine by name.", labels=["name"])
        for name, value in sorted(snapshot.counters.items()):
            counters.add_metric([name], value)
        yield counters


def _used(state: ServingState) -> int:
    return state.pages - state.free_pages - state.cached_pages


class _VllmMetrics(Collector):
    """The metrics of a registry that vLLM has as well, by its names and with its labels."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry, self._labels = registry, {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        for metric in self._registry.collect():
            for name in _VLLM.get(metric.name, ()):
                theirs = Metric(f"vllm:{name}", metric.documentation, metric.type)
                for sample in metric.samples:
                    if not sample.name.endswith("_created"):
                        renamed = sample.name.replace(metric.name, theirs.name, 1)
                        theirs.add_sample(renamed, {**sample.labels, **self._labels}, sample.value)
                yield theirs
