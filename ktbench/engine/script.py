"""The script of a workload: what every cell is given, step by step, so that all do the same work."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ktbench.core.shape import MoEShape
from ktbench.core.spec import WorkloadSpec
from ktbench.engine.forward import CacheState, Forward
from ktbench.engine.operator import Pass
from ktbench.engine.routing import PassRouting, synthetic
from ktbench.workload.prompts import prompt_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Ids [batch, tokens] and routing of each step; for decode the cache as the prompt left it."""

    workload: WorkloadSpec
    ids: tuple[Tensor, ...]
    routing: tuple[PassRouting, ...]
    prompt_cache: CacheState = field(default_factory=list)


def write_script(workload: WorkloadSpec, shape: MoEShape, forward: Forward, state: Pass) -> Script:
    """Draws the prompts and settles the routing of every pass.

    With `routing=model` one untimed run through all steps records what the routers choose. The backend is the one set
    in `state`; deferral and skipping must be off.
    """
    prompt, ids = _ids(workload, shape.vocab)
    cache: CacheState = []
    if prompt is not None:
        forward.forget()
        _settled(workload, shape, forward, state, prompt, number=0, must_run=True)
        cache = forward.remember()
    routing = tuple(
        _settled(workload, shape, forward, state, step_ids, number=number, must_run=workload.routing == "model")
        for number, step_ids in enumerate(ids, start=1)
    )
    return Script(workload=workload, ids=ids, routing=routing, prompt_cache=cache)


def _ids(workload: WorkloadSpec, vocab: int) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Prompt (decode only) and step ids: prefill gets new prompts each step, decode its next token, teacher-forced."""
    prefill, prompt, steps = workload.phase == "prefill", workload.prompt, workload.steps
    tokens = steps * prompt if prefill else prompt + steps
    ids = torch.from_numpy(prompt_ids(vocab, workload.batch, tokens, workload.seed))
    if prefill:
        return None, ids.split(prompt, dim=1)
    return ids[:, :prompt], ids[:, prompt:].split(1, dim=1)


def _settled(
    workload: WorkloadSpec, shape: MoEShape, forward: Forward, state: Pass, ids: Tensor, *, number: int, must_run: bool
) -> PassRouting:
    """Routing of one pass, drawn or recorded; the pass itself runs where its routing or its cache is needed."""
    state.replay = None if workload.routing == "model" else synthetic(workload, shape, ids.numel(), number)
    state.record = []
    if must_run:
        (forward.whole if workload.phase == "prefill" else forward.onward)(ids)
    recorded, state.record = state.record, None
    return recorded if state.replay is None else state.replay
