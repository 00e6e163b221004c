"""The engine as an lm-eval model: called like its own `hf` model, with the same answers.

Letters: N tokens of a continuation, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import resolve_max_length
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ktbench.engine.generate import Generator
from ktbench.eval.lm.cache import AnswerCache, request_key
from ktbench.eval.lm.generation import (
    Encoder,
    GeneratedText,
    Generation,
    GenerationRequest,
    Stops,
    group_requests,
    settings_of,
)
from ktbench.eval.texts import require_known
from ktbench.spec.run_spec import RunSpec

_ROOM = 256  # for new tokens if a task sets no limit; lm-eval's own
_LOGITS_BYTES = 1 << 30  # of a pass at once
_LOGIT_BYTES = 6  # in bf16, and then in float32
_SCORES_BYTES = 1 << 31  # of attention over the prompts of a batch
_SCORE_BYTES = 12  # in float32, masked, and as weights

# A continuation's log-probability, and whether each of its tokens is the most likely one.
Likelihood = tuple[float, bool]
# A continuation to be scored: the strings (unused), the tokens of the context, those of the continuation.
_Pair = tuple[Any, list[int], list[int]]


@dataclass(kw_only=True, slots=True)
class Tally:
    """Work since the last `use`. `cached` of the `requests` took no work, and their tokens are not counted.

    `cut_answers` reached their token limit, `cut_prompts` lost their beginning; both include cached ones.
    """

    requests: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    cut_answers: int = 0
    cut_prompts: int = 0


class EngineLM(TemplateLM):  # type: ignore[misc]
    """Answers lm-eval's requests, `batch` of them at a time, or as many as long prompts leave memory for.

    `max_length` is the longest context with its continuation (None: that of the model's configuration);
    `progress(done, of)` is called after every batch. Call `use` before the first request.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch: int = 32,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self.generator, self.tokenizer = generator, tokenizer
        self.batch_size = batch
        self.max_length: int = max_length or resolve_max_length(generator.network.config, tokenizer)
        self.tally = Tally()
        self._encoder = Encoder(tokenizer, add_bos_token)
        self._progress = progress or (lambda done, of: None)
        self._cache: AnswerCache | None = None

    def use(self, spec: RunSpec, cache: AnswerCache | None = None) -> None:
        """Switch to this cell and reset the tally. `cache` must be that of its `identity_of`.

        Raises like the engine's `use`.
        """
        self.generator.use(spec)
        self._cache, self.tally = cache, Tally()

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._encoder.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What stands for an empty context."""
        return self._encoder.prefix_id

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's own cache of prompts."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation."""
        return self._encoder.chat(chat_history, answers=add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text."""
        return self._encoder.text(string, add_special_tokens)

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[Likelihood]:
        """Log-likelihoods of continuations after their contexts, see `_loglikelihood_tokens`; calls `progress`."""
        likelihoods: list[Likelihood] = super().loglikelihood(requests, disable_tqdm=True)
        return likelihoods

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of every text as a whole, in windows of `max_length` tokens that do not overlap."""
        windows: list[_Pair] = []
        ends = [0]
        for request in requests:
            token_windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            windows += [(None, *utils.make_disjoint_window(window)) for window in token_windows]
            ends.append(len(windows))
        parts = [log_probability for log_probability, _ in self._loglikelihood_tokens(windows, in_order=True)]
        return [sum(parts[first:end]) for first, end in pairwise(ends)]

    def _loglikelihood_tokens(self, requests: Sequence[_Pair], *, in_order: bool = False, **_: Any) -> list[Likelihood]:
        """Log-probability of each continuation after its context, and whether greedy decoding would give it.

        Continuations that differ only in their last token share a pass. Sequences longer than `max_length` lose their
        beginning. The longest share a batch or, as in lm-eval's `hf` model, consecutive ones (`in_order`), because
        sequences in a batch affect each other's rounding. Raises ValueError for a continuation that is empty or longer
        than that.
        """
        pairs = [(self._row(context, continuation), continuation) for _, context, continuation in requests]
        keys = [request_key("loglikelihood", *pair) for pair in pairs]
        likelihoods = self._cached_answers(keys)
        alike: dict[tuple[int, ...], dict[str, list[int]]] = defaultdict(dict)
        for key, (row, continuation) in zip(keys, pairs, strict=True):
            if key not in likelihoods:
                alike[row][key] = continuation
        rows_at_once = self._rows_at_once(alike)
        for rows in self._batches(_longest_first([*alike], self.batch_size if in_order else None), len, rows_at_once):
            longest = [max(map(len, alike[row].values())) for row in rows]
            likelihoods |= self._keep(
                {
                    key: _likelihood(logits, continuation)
                    for row, logits in zip(rows, self.generator.passed(rows, longest), strict=True)
                    for key, continuation in alike[row].items()
                }
            )
            self.tally.prompt_tokens += sum(map(len, rows))
        return [(likelihoods[key][0], likelihoods[key][1]) for key in keys]

    def _rows_at_once(self, alike: Mapping[tuple[int, ...], Mapping[str, list[int]]]) -> int:
        """As many as the logits of their continuations leave room for."""
        longest = max(
            (len(continuation) for continuations in alike.values() for continuation in continuations.values()),
            default=1,
        )
        vocab = self.generator.model.shape.vocab
        return max(1, min(self.batch_size, _LOGITS_BYTES // (longest * vocab * _LOGIT_BYTES)))

    def _row(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """The tokens to process to predict all of a continuation."""
        if not 0 < len(continuation) <= self.max_length:
            raise ValueError(
                f"loglikelihood: a continuation has {len(continuation)} tokens, allowed are 1 to {self.max_length}"
            )
        whole = (context or [self.prefix_token_id]) + continuation
        require_known(whole, self.generator.model.shape.vocab)
        self.tally.cut_prompts += len(whole) > self.max_length + 1
        return tuple(whole[-self.max_length - 1 : -1])

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """A `GeneratedText` for each prompt; equal requests at a temperature are samples of it.

        Raises ValueError for unknown generation arguments, and if an answer has room for more tokens than `max_length`
        leaves.
        """
        questions = self._questions(requests)
        answers = self._cached_answers([question.key for question in questions])
        new = {question.key: question for question in questions if question.key not in answers}
        for batch in self._batches(
            group_requests(new.values()), lambda question: len(question.prompt), self.batch_size
        ):
            answers |= self._keep(self._generate(batch))
        self.tally.cut_answers += sum(answers[question.key][1] >= question.generation.room for question in questions)
        return [GeneratedText(*answers[question.key]) for question in questions]

    def _questions(self, requests: Sequence[Instance]) -> list[GenerationRequest]:
        repeats: Counter[Any] = Counter()
        eos = self._encoder.string([self.eot_token_id], special=True)
        usual = settings_of(self.generator.network.generation_config)
        questions = []
        for context, arguments in (request.args for request in requests):
            generation = Generation.from_arguments(arguments, eos=eos, room=_ROOM, usual=usual)
            repeats[context, generation] += 1
            tokens, number = self._encoder.prompt(context), repeats[context, generation]
            require_known(tokens, self.generator.model.shape.vocab)
            questions.append(GenerationRequest.for_prompt(context, tokens, self.max_length, generation, number))
            self.tally.cut_prompts += len(questions[-1].prompt) < len(tokens)
        return questions

    def _generate(self, batch: Sequence[GenerationRequest]) -> Mapping[str, tuple[str, int]]:
        """Text and number of tokens by key."""
        stops = Stops(self._encoder, self.generator.eos_ids | {self.eot_token_id})
        answers = self.generator.generate(
            [request.prompt for request in batch],
            [request.sampling for request in batch],
            room=max(request.generation.room for request in batch),
            ended=lambda i, tokens: stops.complete(batch[i].generation, tokens),
        )
        self.tally.prompt_tokens += sum(len(request.prompt) for request in batch)
        self.tally.new_tokens += sum(map(len, answers))
        return {
            request.key: (request.generation.cut(self._encoder.string(tokens, special=False)), len(tokens))
            for request, tokens in zip(batch, answers, strict=True)
        }

    def _cached_answers(self, keys: Sequence[str]) -> dict[str, Any]:
        """The cached answers to these keys."""
        cache = self._cache
        cached = {} if cache is None else {key: answer for key in keys if (answer := cache.get(key)) is not None}
        self.tally.requests += len(keys)
        self.tally.cached += sum(key in cached for key in keys)
        return cached

    def _keep(self, new: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._cache is not None:
            self._cache.put(new)
        return new

    def _batches(self, groups: Sequence[Sequence[Any]], length: Callable[[Any], int], size: int) -> Iterator[list[Any]]:
        """At most `size` items of one group at a time; they come longest first."""
        done, of = 0, sum(map(len, groups))
        for items in groups:
            first = 0
            while first < len(items):
                batch = list(items[first : first + self._at_once(length(items[first]), size)])
                yield batch
                first += len(batch)
                done += len(batch)
                self._progress(done, of)

    def _at_once(self, longest: int, size: int) -> int:
        """As many as the attention scores leave room for, which grow with the square of a prompt's length."""
        heads: int = self.generator.network.config.num_attention_heads
        return max(1, min(size, _SCORES_BYTES // (_SCORE_BYTES * heads * max(1, longest) ** 2)))


def _longest_first(rows: Sequence[tuple[int, ...]], size: int | None) -> list[list[tuple[int, ...]]]:
    """All rows in one group, or `size` that follow each other in each, sorted as lm-eval's `hf` model does."""
    step = size or max(1, len(rows))
    parts = (rows[first : first + step] for first in range(0, len(rows), step))
    return [sorted(part, key=lambda row: (-len(row), row)) for part in parts]


def _likelihood(logits: Tensor, continuation: Sequence[int]) -> Likelihood:
    """The likelihood of a continuation whose last token is predicted by the last row of `logits` [≥ N, V] float32."""
    logits, tokens = logits[-len(continuation) :], torch.tensor(continuation)
    chances = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])
    return float(chances.sum()), bool((logits.argmax(dim=-1) == tokens).all())
