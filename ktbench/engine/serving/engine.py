"""The engine that serves many requests: scheduler, pages and steps together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs

from ktbench._kernels import OpenMPTeam
from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.inputs import CACHE
from ktbench.engine.device_placement import detach
from ktbench.engine.generate import require_plain
from ktbench.engine.load import load_components
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.engine.protocol import HostRole, Unsupported, require
from ktbench.engine.roles import split_cpus
from ktbench.engine.serving.paged import LayerShape, PagedCache, PagedSteps, latent_modules
from ktbench.engine.serving.pages import PagePool
from ktbench.engine.serving.prefix import PageCopies, PageStore, first_key
from ktbench.engine.serving.requests import Finish, ServeRequest, ServingState, TokenEvent, Top
from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser
from ktbench.engine.serving.scheduler import Part, Scheduler, ServedSequence
from ktbench.engine.serving.steps import BatchStepRunner
from ktbench.engine.synthetic import family_config
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.pages import page_memory
from ktbench.spec.shape import length_rotation

_PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer")


def open_serving(spec: RunSpec, host: HostRole, progress: LoadProgress = SILENT) -> BatchEngine:
    """The engine that serves the model of a cell. Raises ValueError as `load_components` does, Unsupported before."""
    require_servable(spec)
    components = load_components(spec.model, WeightPlan.of([spec], host), host, progress)
    return BatchEngine(spec, components, host.memory_bytes)


def require_servable(spec: RunSpec) -> None:
    """Raises Unsupported for what does not serve requests, by the spec and the model's configuration alone."""
    if spec.system != OURS:
        raise Unsupported(f"system={spec.system}: only our own engine serves requests")
    require(replace(spec, engine=spec.engine.without_serving), spec.model)
    require_plain(spec.engine)
    if spec.engine.device != "cpu":
        raise Unsupported(f"engine.device={spec.engine.device}: requests are served on CPU cores, leave it out")
    config: Any = family_config(spec.model).get_text_config()
    kinds, _ = get_layer_types_and_kwargs(config)
    if others := sorted(kind for kind in set(kinds) if not _is_plain(kind)):
        raise Unsupported(f"model={spec.model.name}: serving keeps plain keys and values, not those of {others[0]}")
    # Neighbours would change each other's.
    if (rotation := length_rotation(spec.model.config)) is not None:
        raise Unsupported(f"model={spec.model.name}: a rotation of type {rotation[0]} follows the longest sequence")


def _is_plain(kind: str) -> bool:
    """Whether a type of layers caches keys and values alone; modelling code that is not imported adds types later."""
    layer = DYNAMIC_LAYER_TYPE_MAPPING.get(kind)
    return layer is not None and layer.__name__ in _PLAIN


class BatchEngine:
    """Implements `ktbench.engine.serving.requests.ServingEngine`; made by `open_serving`.

    `memory_bytes` is what the machine has in all, 0 where it is not known.
    """

    def __init__(self, spec: RunSpec, components: EngineComponents, memory_bytes: int) -> None:
        self._components, engine = components, spec.engine
        components.prepare(spec)
        detach(components.operators)
        components.switch(engine.without_routing)
        self._serving = serving = engine.serving
        shapes = _layer_shapes(components.network)
        positions = spec.model.shape.positions
        pages = page_memory(serving, sum(shape.numbers for shape in shapes), positions, memory_bytes).count
        self.max_positions = min(positions, pages * serving.page_tokens)
        self._cache = PagedCache(shapes, pages + 1, serving.page_tokens)
        self._copies = PageCopies(serving.ram_bytes, _disk(spec) if engine.prefix_cache else None)
        pool = PagePool(pages, lambda key, page: self._copies.put(key, self._cache.content(page)))
        first = first_key(spec) if engine.prefix_cache else b""
        self._scheduler = Scheduler(engine, pool, self._copies, self._fill, first)
        operators = components.attention if engine.packed_dense else None
        if operators is not None:
            operators.make_room(self.max_positions)
        team = OpenMPTeam(len(split_cpus(components.cpus, engine).device))
        steps = PagedSteps(components.network, self._cache, team, components.state.recorder, operators)  # type: ignore[arg-type]
        table_pages = -(-self.max_positions // serving.page_tokens)
        self._runner = BatchStepRunner(components, steps, engine, table_pages)
        self._chooser, self._sampled = TokenChooser(), dict[ServedSequence, SampledAnswer]()
        self._ended: list[TokenEvent] = []
        self._counted: Counter[str] = Counter(batched_tokens=0, static_batch_tokens=0, prefill_chunks=0, steps=0)
        self._engine = engine

    def submit(self, request: ServeRequest) -> None:
        if len(request.prompt) + request.max_new > self.max_positions:
            raise ValueError(
                f"request {request.key}: prompt of {len(request.prompt)} and max_new={request.max_new} tokens, "
                f"allowed are {self.max_positions} together"
            )
        if any(event.key == request.key for event in self._ended):
            raise ValueError(f"request {request.key}: the next step ends a request of this key")
        self._scheduler.submit(request)

    def cancel(self, key: str) -> None:
        """See `ServingEngine`; its end is among the events of the next step."""
        sequence = self._scheduler.take_back(key)
        if sequence is not None:
            self._forget(sequence)
            self._ended.append(TokenEvent(key=key, token=None, finish="cancelled", cached_tokens=sequence.cached or 0))

    def step(self) -> list[TokenEvent]:
        events, self._ended = self._ended, []
        began = perf_counter_ns()
        parts = self._scheduler.plan()
        if not parts:
            return events
        planned = perf_counter_ns()
        logits = self._runner.run(parts)
        computed = perf_counter_ns()
        self._count(parts)
        for part in parts:
            self._scheduler.computed(part)
        kept = perf_counter_ns()
        last = [part.sequence for part in parts if part.is_last]
        events += self._answer(last, self._scored(parts, logits))
        self._counted["scheduler_ns"] += planned - began + kept - computed
        self._counted["step_ns"] += perf_counter_ns() - began
        return events

    def _scored(self, parts: Sequence[Part], logits: Tensor) -> Tensor:
        """Keeps log-probabilities of prompts that are asked for; the logits that are left predict new tokens."""
        if not any(part.sequence.is_scored for part in parts):
            return logits
        rows, end = [], 0
        for part in parts:
            end += part.kept
            if part.sequence.is_scored:
                _score(part, logits[end - part.kept : end])
            if part.is_last:
                rows.append(end - 1)
        return logits[rows]

    def _answer(self, sequences: Sequence[ServedSequence], logits: Tensor) -> list[TokenEvent]:
        """The next token of each, of logits [R, V]."""
        if not sequences:
            return []
        tokens = self._chooser.choose(logits, [self._answer_of(sequence) for sequence in sequences])
        events = []
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if token is None:
                why = "the logits are not finite"
                event = TokenEvent(key=sequence.request.key, token=None, finish="error", why=why)
            else:
                event = self._event(sequence, _force(sequence, token), logits[row])
            events.append(event)
            if event.finish is not None:
                self._scheduler.end(sequence)
                self._forget(sequence)
        return events

    def _answer_of(self, sequence: ServedSequence) -> SampledAnswer:
        found = self._sampled.get(sequence)
        if found is None:
            request = sequence.request
            found = self._sampled[sequence] = SampledAnswer(request.sampling, request.prompt, request.stop_ids)
        return found

    def _event(self, sequence: ServedSequence, token: int, logits: Tensor) -> TokenEvent:
        request = sequence.request
        before = tuple(sequence.prompt_logprobs) if sequence.is_scored else ()
        sequence.tokens.append(token)
        logprob: float | None = None
        top: Top = ()
        if request.logprobs is not None:
            ((logprob, top),) = _logprobs(logits[None], [token], request.logprobs)
        return TokenEvent(
            key=request.key,
            token=token,
            finish=_finish(sequence, token),
            logprob=logprob,
            top=top,
            cached_tokens=sequence.cached or 0,
            prompt_logprobs=before,
            logits=logits.to(torch.float32, copy=True).numpy() if request.logits else None,
        )

    def _count(self, parts: Sequence[Part]) -> None:
        engine, counted = self._engine, self._counted
        counted["steps"] += 1
        tokens = sum(part.end - part.first for part in parts)
        if len(parts) > 1 and (engine.batching or engine.static_batch):
            counted["batched_tokens" if engine.batching else "static_batch_tokens"] += tokens
        prompts = [part for part in parts if part.first < len(part.sequence.request.prompt)]
        counted["prefill_tokens"] += sum(part.end - part.first for part in prompts)
        counted["decode_tokens"] += len(parts) - len(prompts)
        if engine.chunked_prefill:
            beside = len(prompts) < len(parts)
            counted["prefill_chunks"] += sum(beside or not part.is_last for part in prompts)

    def move_cached(self, *, to_disk: bool) -> None:
        with self._copies.waiting():
            self._scheduler.pool.drop_cached()
            if to_disk:
                self._copies.to_disk()

    def forget_cached(self) -> None:
        self._scheduler.pool.forget_cached()
        self._copies.forget()

    def _fill(self, key: bytes, page: int) -> bool:
        return self._copies.take(key, self._cache.content(page))

    def _forget(self, sequence: ServedSequence) -> None:
        self._sampled.pop(sequence, None)

    @property
    def state(self) -> ServingState:
        scheduler, pool = self._scheduler, self._scheduler.pool
        return ServingState(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            pages=pool.pages,
            free_pages=pool.free,
            cached_pages=pool.cached,
            page_tokens=self._serving.page_tokens,
        )

    def counters(self) -> Mapping[str, int]:
        return {**self._components.counters(), **self._counted, **self._scheduler.counted, **self._copies.counters()}

    def notes(self) -> tuple[str, ...]:
        """Remarks on how steps run."""
        why = self._runner.why
        return (f"{self._engine.label}: steps are not recorded: {why}",) if why else ()

    @property
    def network(self) -> PreTrainedModel:
        """The network with the engine's operators in place."""
        return self._components.network

    def close(self) -> None:
        if self._engine.prefix_cache:
            with self._copies.waiting():
                self._scheduler.pool.drop_cached()
                self._copies.close()
        del self._components, self._runner, self._cache, self._scheduler, self._copies


def _force(sequence: ServedSequence, token: int) -> int:
    """The token that the request forces in place of the one chosen."""
    request = sequence.request
    return request.forced[len(sequence.tokens) - len(request.prompt)] if request.forced else token


def _finish(sequence: ServedSequence, token: int) -> Finish | None:
    request = sequence.request
    if token in request.stop_ids:
        return "stop"
    return "length" if len(sequence.tokens) - len(request.prompt) == request.max_new else None


def _score(part: Part, logits: Tensor) -> None:
    """Adds the log-probabilities that logits [T, V] of a part give to the tokens of the prompt after each position."""
    request, known = part.sequence.request, part.sequence.prompt_logprobs
    del known[part.first :]  # where it is computed once more
    following = request.prompt[part.first + 1 : part.end + 1]
    assert request.logprobs is not None
    known += _logprobs(logits[: len(following)], following, request.logprobs)


def _logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[tuple[float, Top]]:
    """Of each row of logits [T, V], the log-probability of one token, and the `count` likeliest with theirs."""
    every = torch.log_softmax(logits.float(), dim=-1)
    values, ids = every.topk(min(count, every.shape[-1]), dim=-1)
    own = every.gather(1, torch.tensor(tokens, dtype=torch.int64)[:, None])[:, 0].tolist()
    tops = (tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True))
    return list(zip(own, tops, strict=True))


@torch.inference_mode()
def _layer_shapes(network: PreTrainedModel) -> list[LayerShape]:
    """What the network's own cache keeps of a token. Raises Unsupported for a layer that keeps none."""
    cache: Any = getattr(network(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True), CACHE)
    latent, shapes = {int(module.layer_idx) for module in latent_modules(network)}, []
    for number, layer in enumerate(cache.layers):
        if type(layer).__name__ not in _PLAIN or layer.keys is None:
            raise Unsupported(f"serving: a {type(layer).__name__} is not plain keys and values")
        (_, heads, _, key_width), value_width = layer.keys.shape, layer.values.shape[3]
        shapes.append(LayerShape(heads, key_width, value_width, latent=number in latent))
    return shapes


def _disk(spec: RunSpec) -> PageStore | None:
    serving = spec.engine.serving
    if serving.disk is None:
        return None
    from ktbench.engine.serving.disk import DiskPages

    pages: PageStore = DiskPages(Path(serving.disk), serving.disk_bytes, first_key(spec))
    return pages
