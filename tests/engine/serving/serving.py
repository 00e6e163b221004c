"""Requests on a tiny model, served to their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from ktbench.engine.components import EngineComponents
from ktbench.engine.load import load_components
from ktbench.engine.loading.progress import SILENT
from ktbench.engine.protocol import HostRole
from ktbench.engine.serving.engine import BatchEngine, open_serving
from ktbench.engine.serving.requests import ServeRequest, TokenEvent
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import ServingSpec
from ktbench.spec.run_spec import ModelSpec
from tests.engine.engines import cell
from tests.engine.families.zoo import VOCAB
from tests.engine.tiny import decode

HOST = HostRole(cores=1)
# Pages and chunks that the tiny prompts fill several of.
SMALL: dict[str, Any] = {"page_tokens": 4, "chunk_tokens": 16, "cache_tokens": 1024}


def drawn(lengths: Sequence[int], seed: int = 1) -> list[tuple[int, ...]]:
    """Prompts."""
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(VOCAB, (length,), generator=draw).tolist()) for length in lengths]


def loaded(model: ModelSpec, **engine: Any) -> EngineComponents:
    """The weights that cells of such features run on, for `opened`."""
    plan = WeightPlan.of([cell(model, decode(), **engine)], HOST)
    return load_components(model, plan, HOST, SILENT)


def opened(
    model: ModelSpec, serving: dict[str, Any] | None = None, held: EngineComponents | None = None, **engine: Any
) -> BatchEngine:
    """An engine of small limits, on weights that are loaded for it or `held`."""
    spec = cell(model, decode(), serving=ServingSpec(**(SMALL | (serving or {}))), **engine)
    return open_serving(spec, HOST) if held is None else BatchEngine(spec, held, HOST.memory_bytes)


def submit(engine: BatchEngine, prompts: Sequence[tuple[int, ...]], max_new: int = 6, **options: Any) -> None:
    """Under their numbers."""
    for i, prompt in enumerate(prompts):
        engine.submit(ServeRequest(key=str(i), prompt=prompt, max_new=max_new, **options))


def finished(engine: BatchEngine) -> dict[str, list[TokenEvent]]:
    """What every request got until all have ended; no page is held then."""
    events: dict[str, list[TokenEvent]] = defaultdict(list)
    while engine.state.waiting or engine.state.running:
        for event in engine.step():
            events[event.key].append(event)
    for event in engine.step():
        events[event.key].append(event)
    state = engine.state
    assert state.free_pages + state.cached_pages == state.pages
    return events


def answers(engine: BatchEngine, prompts: Sequence[tuple[int, ...]], **options: Any) -> list[list[int | None]]:
    """The tokens of the answer to each."""
    submit(engine, prompts, **options)
    events = finished(engine)
    return [[one.token for one in events[str(i)]] for i in range(len(prompts))]
