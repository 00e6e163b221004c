"""Generation: a loaded model continues token sequences, with the routing of its own routers.

Letters: B sequences, T tokens, N tokens that are given, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.batch import GenerationBatch, RunnerPool
from ktbench.engine.decode.step import Forward
from ktbench.engine.device_placement import detach
from ktbench.engine.load import load_components
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.engine.protocol import HostRole, Unsupported, configured, require
from ktbench.engine.serving.requests import Sampling
from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import ModelSpec, RunSpec

__all__ = ["Ended", "Generator", "open_generator"]

# Whether the answer to prompt `i` is complete with these tokens.
Ended = Callable[[int, Sequence[int]], bool]
Ids = Sequence[int]
_NOT_FINITE = "the logits are not finite"


def open_generator(specs: Sequence[RunSpec], host: HostRole, progress: LoadProgress = SILENT) -> Generator:
    """The engine for cells that share weights, which are loaded. Raises ValueError as `load_components` does."""
    first = specs[0]
    if first.system != OURS:
        raise ValueError(f"system={first.system}: only our own engine answers questions")
    return Generator(first.model, load_components(first.model, WeightPlan.of(specs, host), host, progress))


class Generator:
    """A loaded engine that generates, as against `HybridEngine`, which replays traces.

    Expert Deferral and Expert Skipping act in decode steps, in passes over prompts with `engine.defer_prefill` alone.
    Made by `open_generator`.
    """

    def __init__(self, model: ModelSpec, components: EngineComponents) -> None:
        self.model, self._components = model, components
        self._forward = Forward(components.network)
        self._pool = RunnerPool(components, self._forward)
        self._engine: EngineSpec | None = None

    def use(self, spec: RunSpec) -> None:
        """Features from now on. Raises Unsupported, and ValueError for a model, layout or thread count not there."""
        require(spec, self.model)
        require_plain(spec.engine)
        self._components.prepare(spec)
        detach(self._components.operators)
        if spec.engine != self._engine:
            self._pool.reset()
        self._engine = spec.engine
        self._switch(acts=spec.engine.defer_prefill)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Ids], samplings: Sequence[Sampling], *, room: int, ended: Ended
    ) -> list[list[int]]:
        """New tokens for each prompt of one batch, at most `room`.

        `ended` is called after every token; the one that ends an answer is part of it. Raises ValueError for an empty
        prompt, and for logits that are no numbers.
        """
        answers: list[list[int]] = [[] for _ in prompts]
        chooser, left = TokenChooser(), list(range(len(prompts)))
        sampled = [SampledAnswer(sampling, prompt) for sampling, prompt in zip(samplings, prompts, strict=True)]
        logits, batch = self._begin(prompts, room)
        for number in range(room):
            tokens = chooser.choose(logits, [sampled[i] for i in left])
            kept = []
            for index, (i, token) in enumerate(zip(left, tokens, strict=True)):
                if token is None:
                    raise ValueError(_NOT_FINITE)
                answers[i].append(token)
                if not ended(i, answers[i]):
                    kept.append(index)
            if not kept or number == room - 1:
                break
            if len(kept) < len(left):
                _require_finite(logits)  # of answers that end now there are none later
                left = [left[index] for index in kept]
                batch.keep(kept)
            logits = self._step(batch, [answers[i][-1] for i in left])
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
        ranges = zip(firsts, lengths, strict=True)
        return (logits[i, first - before : end - before].float().cpu() for i, (first, end) in enumerate(ranges))

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
        logits, batch = self._begin(prompts, tokens.shape[1])
        seen = [_wide(logits)]
        for column in range(tokens.shape[1] - 1):
            seen.append(_wide(self._step(batch, tokens[:, column].tolist())))
        return torch.stack(seen, dim=1)

    def counters(self) -> Mapping[str, int]:
        """Cumulative counts by the names of the feature table, and others."""
        return self._components.counters()

    def notes(self) -> tuple[str, ...]:
        """Remarks on how the last answers came about."""
        why = self._pool.why
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
        """Positions that the model was made for; None where its configuration has no such limit."""
        return getattr(self.network.config.get_text_config(), "max_position_embeddings", None)

    def close(self) -> None:
        """Release weights and threads."""
        del self._components, self._forward, self._pool

    def _begin(self, prompts: Sequence[Ids], room: int) -> tuple[Tensor, GenerationBatch]:
        """Logits [B, V] after one pass over prompts, padded in front, and their batch with `room` for more tokens."""
        lengths = _lengths(prompts, "prompt")
        padding = torch.tensor([max(lengths) - length for length in lengths], device=self._device)
        ids = torch.tensor([[*[0] * (max(lengths) - len(prompt)), *prompt] for prompt in prompts], device=self._device)
        engine, forward = configured(self._engine), self._forward
        self._switch(acts=engine.defer_prefill)
        forward.reset()
        forward.set_padding(padding)
        logits = self._checked(forward.extend(ids))
        self._switch(acts=True)
        runner = self._pool.begin(room, recorded=room > 1 and engine.records_steps)
        return logits, GenerationBatch(self._pool, runner, len(prompts))

    def _switch(self, *, acts: bool) -> None:
        """A pass begins, in which deferral and skipping act or do not."""
        engine = configured(self._engine)
        self._components.switch(engine if acts else engine.without_routing)
        self._components.state.begin(None)

    @torch.inference_mode()
    def _pass(self, ids: Tensor, kept: int) -> Tensor:
        """Logits [B, kept, V] of the last positions of one pass."""
        self._switch(acts=configured(self._engine).defer_prefill)
        return self._checked(self.network(input_ids=ids, use_cache=False, logits_to_keep=kept).logits)

    def _step(self, batch: GenerationBatch, ids: Ids) -> Tensor:
        return self._checked(batch.step(torch.tensor(ids, device=self._device)))

    def _checked(self, logits: Tensor) -> Tensor:
        self._components.finish()
        self._components.check()
        return logits

    @property
    def _device(self) -> torch.device:
        return self.network.device


def require_plain(engine: EngineSpec) -> None:
    """Raises Unsupported for what is about speed alone and would have to be done in timed steps."""
    if engine.deferral == "auto":
        raise Unsupported("engine.deferral=auto watches timed steps: set the number that answers are needed for")
    if engine.placement.policy != "host":
        policy = engine.placement.policy
        raise Unsupported(
            f"engine.placement.policy={policy}: decides where experts run, not what they answer; leave it out"
        )


def _require_finite(logits: Tensor) -> None:
    if not logits.isfinite().all():
        raise ValueError(_NOT_FINITE)


def _lengths(rows: Sequence[Ids], what: str) -> list[int]:
    lengths = [len(row) for row in rows]
    if not lengths or min(lengths) == 0:
        where = f"{what} {lengths.index(0)} of {len(lengths)}" if lengths else f"{what}s"
        raise ValueError(f"{where}: has no tokens, at least one is needed")
    return lengths


def _wide(logits: Tensor) -> Tensor:
    """A copy: steps write their logits anew."""
    return logits.to("cpu", torch.float32, copy=True)
