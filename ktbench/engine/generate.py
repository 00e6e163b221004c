"""The engine answers: a loaded model continues token sequences, its routers choosing for themselves.

Letters: B sequences, T tokens, N tokens that are given, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.answering_choice import Chooser, Sampling
from ktbench.engine.answering_recordings import Recordings, filled
from ktbench.engine.answering_steps import PassSteps, Sequences, Steps, select_rows, selects_rows
from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.forward import Forward
from ktbench.engine.load import load_components
from ktbench.engine.placement import detach
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.support import configured, require
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec

__all__ = ["Ended", "Generator", "Sampling", "open_generator"]

# Whether the answer to prompt `i` is complete with these tokens.
Ended = Callable[[int, Sequence[int]], bool]
Ids = Sequence[int]


def open_generator(specs: Sequence[RunSpec], host: HostRole) -> Generator:
    """The engine for cells that share weights, which are loaded. Raises ValueError as `load_components` does."""
    first = specs[0]
    if first.system != "ktbench":
        raise ValueError(f"system={first.system}: only our own engine answers questions")
    return Generator(first.model, load_components(first.model, WeightPlan.of(specs, host), host))


class Generator:
    """A loaded engine that answers, as against `HybridEngine`, which replays scripts.

    Expert Deferral and Expert Skipping act in decode steps, in passes over prompts with `engine.defer_prefill` alone.
    Made by `open_answering`.
    """

    def __init__(self, model: ModelSpec, components: EngineComponents) -> None:
        self.model, self._components = model, components
        self._forward = Forward(components.network)
        self._recordings = Recordings(components)
        self._engine: EngineSpec | None = None

    def use(self, spec: RunSpec) -> None:
        """Features from now on. Raises Unsupported, and ValueError for a model, layout or thread count not there."""
        require(spec, self.model)
        _require_plain(spec.engine)
        components = self._components
        components.threads.use(spec.engine, components.host, components.device)
        if components.host is not None and spec.engine.fused:
            components.host.require(spec)
        detach(components.operators)
        if spec.engine != self._engine:
            self._recordings.forget()
        self._engine = spec.engine
        self._switch(acts=spec.engine.defer_prefill)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Ids], samplings: Sequence[Sampling], *, room: int, ended: Ended
    ) -> list[list[int]]:
        """New tokens for each prompt of one batch, at most `room`.

        `ended` is asked after every token; the one that ends an answer is part of it. Raises ValueError for an empty
        prompt, and for logits that are no numbers.
        """
        answers: list[list[int]] = [[] for _ in prompts]
        chooser, left = Chooser(samplings, room), list(range(len(prompts)))
        logits, sequences = self._begin(prompts, room)
        for number in range(room):
            tokens = chooser.choose(logits, left, number)
            places = []
            for place, (i, token) in enumerate(zip(left, tokens, strict=True)):
                answers[i].append(token)
                if not ended(i, answers[i]):
                    places.append(place)
            if not places or number == room - 1:
                break
            if len(places) < len(left):
                left = [left[place] for place in places]
                sequences.keep(places)
            logits = self._step(sequences, [answers[i][-1] for i in left])
        _require_finite(logits)  # what once was no number stays none
        return answers

    def passed(self, rows: Sequence[Ids], last: Sequence[int] | None = None) -> Iterator[Tensor]:
        """Logits float32 [T, V] of each row, of one pass over all: position t is the prediction of token t + 1.

        With `last` only those of so many last positions of each row. Raises ValueError for an empty row, and for logits
        that are no numbers.
        """
        lengths = _lengths(rows, "row")
        firsts = [0] * len(rows) if last is None else [n - kept for n, kept in zip(lengths, last, strict=True)]
        # Padded behind, where causal attention does not look: rows need no mask, as lm-eval's hf model has none.
        ids = torch.tensor([[*row, *[0] * (max(lengths) - len(row))] for row in rows], device=self._device)
        logits, before = self._pass(ids, max(lengths) - min(firsts)), min(firsts)
        _require_finite(logits)
        places = zip(firsts, lengths, strict=True)
        return (logits[i, first - before : end - before].float().cpu() for i, (first, end) in enumerate(places))

    @torch.inference_mode()
    def forced(self, prompts: Sequence[Ids], given: Sequence[Ids]) -> Tensor:
        """Logits float32 [B, N, V] before each of the tokens `given` after prompts, which go in one decode step each.

        The first of them is predicted by the pass over the prompts. Raises ValueError for an empty prompt and where not
        as many tokens are given to all.
        """
        counts = {len(one) for one in given}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(f"given: has {sorted(counts)} tokens, must be as many for every prompt and one at least")
        tokens = torch.tensor([list(one) for one in given])
        logits, sequences = self._begin(prompts, tokens.shape[1])
        seen = [_wide(logits)]
        for column in range(tokens.shape[1] - 1):
            seen.append(_wide(self._step(sequences, tokens[:, column].tolist())))
        return torch.stack(seen, dim=1)

    def counters(self) -> Mapping[str, int]:
        """Cumulative counts by the names of the feature table, and others."""
        counted = dict(self._components.state.counted)
        for role in (self._components.host, self._components.device):
            counted |= {} if role is None else role.counters()
        return counted

    def notes(self) -> tuple[str, ...]:
        """Remarks on how the last answers came about."""
        why = self._recordings.why
        return (f"{configured(self._engine).label}: steps are not recorded: {why}",) if why else ()

    @property
    def network(self) -> PreTrainedModel:
        """The network with the engine's operators in place."""
        return self._components.network

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer, by the model's own configuration."""
        network = self.network
        found = getattr(network.generation_config, "eos_token_id", None)
        found = network.config.eos_token_id if found is None else found
        return frozenset() if found is None else frozenset(found if isinstance(found, list) else [found])

    @property
    def max_positions(self) -> int | None:
        """Positions that the model was made for; None where its configuration does not say."""
        return getattr(self.network.config.get_text_config(), "max_position_embeddings", None)

    def close(self) -> None:
        """Release weights and threads."""
        del self._components, self._forward, self._recordings

    def _begin(self, prompts: Sequence[Ids], room: int) -> tuple[Tensor, Sequences]:
        """Logits [B, V] after one pass over prompts, padded in front, and what goes on from there for `room` tokens."""
        lengths = _lengths(prompts, "prompt")
        padding = torch.tensor([max(lengths) - one for one in lengths], device=self._device)
        ids = torch.tensor([[*[0] * (max(lengths) - len(one)), *one] for one in prompts], device=self._device)
        engine, forward = configured(self._engine), self._forward
        self._switch(acts=engine.defer_prefill)
        forward.forget()
        forward.pad(padding)
        logits = self._checked(forward.onward(ids))
        self._switch(acts=True)
        return logits, Sequences(self._steps(engine, padding, room), len(prompts))

    def _steps(self, engine: EngineSpec, padding: Tensor, room: int) -> Steps:
        """Recorded steps where the engine has them; else, and where the model's cannot be recorded, passes."""
        forward, recordings = self._forward, self._recordings
        if not (engine.packed_dense or engine.cuda_graph) or room == 1 or recordings.why:
            return PassSteps(forward, padding)
        if not selects_rows(forward):
            recordings.why = f"a {type(forward.cache).__name__} is not plain keys and values"
            return PassSteps(forward, padding)
        rows = filled(torch.arange(len(padding)), recordings.width(len(padding)))
        padding = select_rows(forward, padding, rows)
        assert forward.cache is not None
        recorded = recordings.begin(forward.cache.layers, padding, forward.seen + room)
        return recorded or PassSteps(forward, padding)

    def _switch(self, *, acts: bool) -> None:
        """A pass begins, in which deferral and skipping act or do not."""
        engine, components = configured(self._engine), self._components
        assert engine.deferral != "auto"
        components.switch(engine, engine.deferral if acts else 0, engine.skipping if acts else 0)
        components.state.begin(None)

    @torch.inference_mode()
    def _pass(self, ids: Tensor, kept: int) -> Tensor:
        """Logits [B, kept, V] of the last positions of one pass."""
        self._switch(acts=configured(self._engine).defer_prefill)
        return self._checked(self.network(input_ids=ids, use_cache=False, logits_to_keep=kept).logits)

    def _step(self, sequences: Sequences, ids: Ids) -> Tensor:
        return self._checked(sequences.step(torch.tensor(ids)))

    def _checked(self, logits: Tensor) -> Tensor:
        cuda = self._components.cuda
        if cuda is not None:
            cuda.stream.finish()
            cuda.check()
        return logits

    @property
    def _device(self) -> torch.device:
        return self.network.device


def _require_plain(engine: EngineSpec) -> None:
    """Raises Unsupported for what is about speed alone and would have to be done in timed steps."""
    if engine.deferral == "auto":
        raise Unsupported("engine.deferral=auto watches timed steps: set the number that answers are wanted for")
    if engine.placement.policy != "host":
        policy = engine.placement.policy
        raise Unsupported(f"engine.placement.policy={policy}: says where experts run, not what they answer; leave it")


def _require_finite(logits: Tensor) -> None:
    if not logits.isfinite().all():
        raise ValueError("the logits are not finite")


def _lengths(rows: Sequence[Ids], what: str) -> list[int]:
    lengths = [len(row) for row in rows]
    if not lengths or min(lengths) == 0:
        where = f"{what} {lengths.index(0)} of {len(lengths)}" if lengths else f"{what}s"
        raise ValueError(f"{where}: has no tokens, at least one is needed")
    return lengths


def _wide(logits: Tensor) -> Tensor:
    """A copy: steps write their logits anew."""
    return logits.to("cpu", torch.float32, copy=True)
