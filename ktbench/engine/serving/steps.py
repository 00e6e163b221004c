"""Runs the parts of a step: as one pass of the modelling code, or, where all are one token, as a recorded step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.program import NotRecordable, ProgramRecording
from ktbench.engine.serving.paged import PagedInputs, PagedSteps
from ktbench.engine.serving.scheduler import Part
from ktbench.spec.engine import EngineSpec


class BatchStepRunner:
    """Logits of steps. Recordings have 1, 2, 4, 8, ... rows; rows without a token cost no expert and no attention.

    `why` is the reason where steps cannot be recorded.
    """

    def __init__(self, components: EngineComponents, steps: PagedSteps, engine: EngineSpec, table_pages: int) -> None:
        self._components, self._steps, self._engine = components, steps, engine
        self._records = engine.records_steps
        self._on_prompts = engine if engine.defer_prefill else engine.without_routing
        self._table_pages = table_pages
        self._recordings: dict[int, tuple[PagedInputs, ProgramRecording, Tensor]] = {}
        self.why = ""

    @torch.inference_mode()
    def run(self, parts: Sequence[Part]) -> Tensor:
        """The logits [R, V] that parts keep, one after the other; the next step may overwrite them."""
        if self._is_recorded(parts):
            recorded = self._replay(parts)
            if recorded is not None:
                return recorded
        return self._run_pass(parts)

    def _is_recorded(self, parts: Sequence[Part]) -> bool:
        differ = self._on_prompts is not self._engine
        alone = all(part.is_decode if differ else part.end - part.first == 1 for part in parts)
        return self._records and not self.why and alone

    def _replay(self, parts: Sequence[Part]) -> Tensor | None:
        width = 1 << (len(parts) - 1).bit_length()
        if width not in self._recordings:
            return self._record(width, parts)
        inputs, recording, logits = self._recordings[width]
        inputs.set(parts)
        recording.replay()
        return logits[: len(parts)]

    def _record(self, width: int, parts: Sequence[Part]) -> Tensor | None:
        """Do a step and record it for all of its width; None where that cannot be."""
        components = self._components
        assert components.attention is not None
        inputs = PagedInputs(self._steps, width, width, self._table_pages)
        inputs.set(parts)
        recording = ProgramRecording(components.network, components.state.recorder, components.attention.lower)
        self._act(None)
        components.state.idle = None if width == 1 else inputs.idle
        try:
            logits = recording.record(lambda: self._logits(inputs, 0))
        except NotRecordable as error:
            self.why = str(error)
            return None
        finally:
            components.state.idle = None
        self._recordings[width] = inputs, recording, logits
        return logits[: len(parts)]

    def _run_pass(self, parts: Sequence[Part]) -> Tensor:
        inputs = PagedInputs(self._steps, sum(part.end - part.first for part in parts), len(parts), self._table_pages)
        inputs.set(parts)
        self._act(self._answers(parts))
        try:
            return self._logits(inputs, inputs.last)
        finally:
            self._components.state.acts_on = None

    def _logits(self, inputs: PagedInputs, kept: Tensor | int) -> Tensor:
        self._components.state.begin(None)
        return self._steps.logits(inputs, kept)

    def _answers(self, parts: Sequence[Part]) -> Tensor | None:
        """Which tokens of a step features that route act on [T]; None: on all."""
        if self._on_prompts is self._engine:
            return None
        prompts = [(part, len(part.sequence.request.prompt)) for part in parts]
        acts = [position >= prompt for part, prompt in prompts for position in range(part.first, part.end)]
        return None if all(acts) else torch.tensor(acts)

    def _act(self, tokens: Tensor | None) -> None:
        none = tokens is not None and not bool(tokens.any())
        self._components.switch(self._on_prompts if none else self._engine)
        self._components.state.acts_on = None if none else tokens
