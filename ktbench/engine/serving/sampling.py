"""How the next token of an answer is chosen from its logits: the likeliest, or one drawn by keyed Gumbel noise.

A token is drawn as the largest of logit plus Gumbel noise, which has the probabilities of the softmax (Gumbel 1954).
The noise is a hash of (seed, number of the token in the answer, token): it depends on nothing else in the batch, and
logits that round differently change a draw only where two tokens come first within that rounding.

Letters: R answers, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.serving.requests import Sampling

# Neighbouring ids that are drawn as one before a token among them is: noise is needed for V / 512 blocks and the 512
# tokens of one block, not for V tokens. The largest of a block's logits with noise has the block's own probability.
_BLOCK = 512
_FIRST_BLOCK = 1 << 40  # blocks are keyed like tokens behind all of those
# Weights below e^-80 of the largest are never drawn: Gumbel noise of 52 bits is between -3.6 and 36.8.
_LEAST = -80.0
_BUCKETS = 1024
_FAINT = 1e-20  # sums of exponentials below this may have lost some
_LOWEST, _TINY = float(np.finfo(np.float32).min), float(np.finfo(np.float32).tiny)

_STEP, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class SampledAnswer:
    """The tokens of one answer so far, and how the next is chosen. No token of `stop_ids` is before `min_tokens`."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), stop_ids: Iterable[int] = ()) -> None:
        self.sampling, self.count = sampling, 0
        self._counts: Counter[int] = Counter()  # of tokens of the answer
        self._stop_ids = tuple(stop_ids) if sampling.min_tokens else ()
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._is_repeated = sampling.repetition_penalty != 1
        self._seen = np.unique(np.array(prompt if self._is_repeated else (), np.int64))

    @property
    def is_plain(self) -> bool:
        """Whether the next token is that of the largest logit as it is."""
        sampling = self.sampling
        return not sampling.temperature and not (sampling.changes_logits or self.count < sampling.min_tokens)

    @property
    def is_unlimited(self) -> bool:
        """Whether every token may be drawn, by its logit as it is."""
        sampling = self.sampling
        is_changed = sampling.changes_logits or self.count < sampling.min_tokens
        return bool(sampling.temperature) and sampling.keeps_all and not is_changed

    def add(self, token: int) -> None:
        """Note the token that was chosen."""
        self.count += 1
        if self._is_repeated and token not in self._seen:
            self._seen = np.append(self._seen, token)
        self._counts[token] += 1

    def adjust(self, logits: NDArray[np.float32]) -> None:
        """Apply bias, penalties and the least length to logits [V], in place, in the order of vLLM.

        The arithmetic of the repetition penalty is float32, as in Transformers.
        """
        sampling = self.sampling
        logits[self._biased] += self._bias
        if self._is_repeated:
            seen, penalty = logits[self._seen], np.float32(sampling.repetition_penalty)
            logits[self._seen] = np.where(seen < 0, seen * penalty, seen / penalty)
        if self._counts and (sampling.presence_penalty or sampling.frequency_penalty):
            ids, counts = (np.array([*one], np.int64) for one in (self._counts, self._counts.values()))
            logits[ids] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(np.float32)
        if self.count < sampling.min_tokens:
            logits[[token for token in self._stop_ids if token < len(logits)]] = -np.inf


class TokenChooser:
    """Chooses the next tokens of answers. It keeps the memory that a choice needs."""

    def __init__(self) -> None:
        self._logits, self._weights = torch.empty(0), torch.empty(0)

    def choose(self, logits: Tensor, answers: Sequence[SampledAnswer]) -> list[int | None]:
        """The next token of each answer, which is noted, of logits [R, V] of any float type and device.

        None, and nothing noted, where the largest logit is infinite or a logit is not a number.
        """
        tokens: list[int | None] = [None] * len(answers)
        plain = [row for row, answer in enumerate(answers) if answer.is_plain]
        if plain:
            largest, likeliest = (logits if len(plain) == len(answers) else logits[plain]).max(dim=-1)
            sound, chosen = largest.isfinite().tolist(), likeliest.tolist()
            for row, is_sound, token in zip(plain, sound, chosen, strict=True):
                tokens[row] = token if is_sound else None
        for row in set(range(len(answers))) - {*plain}:
            tokens[row] = self._chosen(logits[row], answers[row])
        for token, answer in zip(tokens, answers, strict=True):
            if token is not None:
                answer.add(token)
        return tokens

    def _chosen(self, logits: Tensor, answer: SampledAnswer) -> int | None:
        if answer.is_unlimited and (token := self._drawn(logits, answer)) is not None:
            return token
        size = logits.shape[0]
        self._make_room(-(-size // _BLOCK) * _BLOCK, size)
        self._logits[:size].copy_(logits)
        own: NDArray[np.float32] = self._logits.numpy()
        answer.adjust(own[:size])
        if not isfinite(largest := float(own.max())):
            return None
        sampling = answer.sampling
        if not sampling.temperature:
            return int(own.argmax())
        self._scale(largest, sampling.temperature)
        key = sampling.seed, answer.count
        if sampling.keeps_all:
            block = _drawn_block(self._weights_of_blocks(), *key)
            ids = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
        else:
            ids = self._kept(own, size, sampling)
            blocks = ids // _BLOCK
            ids = ids[blocks == _drawn_block(_sums(blocks, own[ids]), *key)]
        return int(ids[np.argmax(own[ids] + gumbel(*key, ids))])

    def _drawn(self, logits: Tensor, answer: SampledAnswer) -> int | None:
        """A token of all logits as they are, in fewer passes; None where float32 cannot hold their exponentials.

        That is where the largest logit is far from 0, and where a logit is not a number.
        """
        size, temperature, key = logits.shape[0], answer.sampling.temperature, (answer.sampling.seed, answer.count)
        self._make_room(-(-size // _BLOCK) * _BLOCK, size)
        self._logits[:size].copy_(logits)
        if temperature != 1:
            self._logits.div_(max(temperature, _TINY))
        sums = self._logits.exp_().view(-1, _BLOCK).sum(dim=1).double().numpy()
        if not _FAINT < float(sums.sum()) < np.inf:
            return None
        first = _drawn_block(sums, *key) * _BLOCK
        scaled = logits[first : first + _BLOCK].to("cpu", torch.float64).numpy() / temperature
        return first + int(np.argmax(scaled + gumbel(*key, np.arange(first, first + len(scaled)))))

    def _scale(self, largest: float, temperature: float) -> None:
        """Logits as differences from the largest, over the temperature: in this order none of these is too small."""
        self._logits.sub_(largest)
        if temperature != 1:
            self._logits.div_(max(temperature, _TINY))

    def _make_room(self, padded: int, size: int) -> None:
        if len(self._logits) != padded:
            self._logits, self._weights = torch.empty(padded), torch.empty(padded)
        self._logits[size:] = -torch.inf

    def _weights_of_blocks(self) -> NDArray[np.float64]:
        """Sums over each block of the exponentials of the scaled logits."""
        torch.clamp(self._logits, min=_LEAST, out=self._weights).exp_()
        sums: NDArray[np.float64] = self._weights.view(-1, _BLOCK).sum(dim=1).double().numpy()
        return sums

    def _kept(self, scaled: NDArray[np.float32], size: int, sampling: Sampling) -> NDArray[np.int64]:
        """Ids that `min_p`, `top_k` and then `top_p` leave of logits up to 0, in no order.

        What can be left is at least as large as a bound that is known without sorting. Of equal logits the lower id is
        the likelier.
        """
        total, least = None, _LOWEST
        if sampling.min_p:
            least = max(least, log(sampling.min_p))
        if sampling.top_k:
            least = max(least, _at_most_largest(scaled, sampling.top_k))
        if sampling.top_p < 1 and not (sampling.top_k or sampling.min_p):
            total = float(self._weights_of_blocks().sum())
            # All V tokens below this have no more than half of what top_p leaves out.
            least = max(least, log((1 - sampling.top_p) * total / (2 * size)))
        ids = np.flatnonzero(scaled >= np.float32(least))
        if sampling.top_k:
            ids = ids[np.argsort(-scaled[ids], kind="stable")[: sampling.top_k]]
        return ids if sampling.top_p == 1 else _nucleus(ids, scaled[ids], sampling.top_p, total)


def _drawn_block(sums: NDArray[np.float64], seed: int, number: int) -> int:
    """A block of tokens, drawn by sums of exponentials of their logits; one of which no token is left has 0."""
    left = np.flatnonzero(sums)
    return int(left[np.argmax(np.log(sums[left]) + gumbel(seed, number, left + _FIRST_BLOCK))])


def _nucleus(
    ids: NDArray[np.int64], scaled: NDArray[np.float32], top_p: float, total: float | None
) -> NDArray[np.int64]:
    """Ids that reach `top_p` of the sum `total` of exponentials first, from the largest down; None: of their own sum.

    Logits, which are up to 0, are put into buckets of equal width; only those of the bucket that holds the last id are
    sorted.
    """
    weights = np.exp(scaled, dtype=np.float64)
    wanted = top_p * (float(weights.sum()) if total is None else total)
    width = max(-float(scaled.min()), _TINY) / (_BUCKETS - 1)
    buckets = (scaled / -width).astype(np.int64)
    sums = np.bincount(buckets, weights)
    last = min(int(np.searchsorted(np.cumsum(sums), wanted)), len(sums) - 1)
    within = buckets == last
    order = np.lexsort((ids[within], -scaled[within]))
    rest, inner = ids[within][order], weights[within][order]
    reached = float(sums[:last].sum()) + np.cumsum(inner) - inner
    return np.concatenate([ids[buckets < last], rest[reached < wanted]])


def _sums(blocks: NDArray[np.int64], scaled: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sums over each block of the exponentials of logits that lie in `blocks`."""
    return np.bincount(blocks, np.exp(scaled, dtype=np.float64)).astype(np.float64)


def _at_most_largest(values: NDArray[np.float32], count: int) -> float:
    """No more than the `count`th largest of values in whole blocks: as many blocks have one at least as large."""
    highest = values.reshape(-1, _BLOCK).max(axis=1)
    among = highest if count <= len(highest) else values
    return max(_LOWEST, float(np.partition(among, -count)[-count])) if count <= len(among) else _LOWEST


def gumbel(seed: int, number: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of tokens for the `number`th of an answer: SplitMix64 of the key (Steele 2014)."""
    key = _mix(_mix(np.array([seed % (1 << 64)], np.uint64)) + np.array([number], np.uint64) * _STEP)
    words = _mix(key + tokens.astype(np.uint64) * _STEP)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # 53 bits: neither 0 nor 1
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
