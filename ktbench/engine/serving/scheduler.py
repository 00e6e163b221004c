"""Which tokens of which requests the next step takes: first come, first served, as far as pages reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ktbench.engine.serving.pages import PagePool
from ktbench.engine.serving.prefix import PageCopies, next_key
from ktbench.engine.serving.requests import QueueFull, ServeRequest, Top
from ktbench.spec.engine import EngineSpec


@dataclass(kw_only=True, slots=True, eq=False)
class ServedSequence:
    """A request and how far it is: `tokens` of prompt and answer, the first `computed` of which have keys and values.

    These lie in `pages`, in order; `keys` are those of whole pages of tokens. `cached` tokens of the prompt came from
    the prefix cache when it was first admitted. `prompt_logprobs` are those known so far, from the second token on.
    """

    request: ServeRequest
    number: int
    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    cached: int | None = None
    prompt_logprobs: list[tuple[float, Top]] = field(default_factory=list)

    @property
    def is_scored(self) -> bool:
        """Whether logits of its prompt are wanted, which is computed as a whole then."""
        return self.request.prompt_logprobs and len(self.tokens) == len(self.request.prompt)

    @property
    def is_cached(self) -> bool:
        """Whether it takes pages from the prefix cache and leaves its own there."""
        return not self.request.forced

    @property
    def left(self) -> int:
        """Tokens to compute before the next one is known."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of a sequence, from position `first` to before `end`."""

    sequence: ServedSequence
    first: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the next token is known after it."""
        return self.end == len(self.sequence.tokens)

    @property
    def kept(self) -> int:
        """How many of its last logits are wanted."""
        return self.end - self.first if self.sequence.is_scored else int(self.is_last)

    @property
    def is_decode(self) -> bool:
        """Whether it is one token of the answer."""
        return self.end - self.first == 1 and self.first >= len(self.sequence.request.prompt)


def _next(sequence: ServedSequence, count: int) -> Part:
    return Part(sequence, sequence.computed, sequence.computed + count)


# Fills page `to` with contents that are kept elsewhere; False where they are not.
FillPage = Callable[[bytes, int], bool]


class Scheduler:
    """The requests that wait and run, and their pages."""

    def __init__(
        self, engine: EngineSpec, pool: PagePool, copies: PageCopies, fill: FillPage, first_key: bytes
    ) -> None:
        self._engine, self._serving, self.pool = engine, engine.serving, pool
        self._copies, self._fill, self._first_key = copies, fill, first_key
        self.waiting: list[ServedSequence] = []
        self.running: list[ServedSequence] = []
        self._read_for: list[ServedSequence] = []
        self._submitted = 0
        self.counted = {"preempted": 0, "cached_prompt_tokens": 0}

    @property
    def limit(self) -> int:
        """How many requests run at once."""
        engine = self._engine
        return self._serving.max_sequences if engine.batching else engine.static_batch or 1

    def submit(self, request: ServeRequest) -> None:
        """Queue a request. Raises QueueFull, and ValueError for one whose key is taken or that no page is left for."""
        key, most = request.key, self.pool.pages * self._serving.page_tokens
        if any(one.request.key == key for one in (*self.waiting, *self.running)):
            raise ValueError(f"request {key}: a request of this key has not ended yet")
        if len(request.prompt) + request.max_new > most:
            raise ValueError(
                f"request {key}: prompt of {len(request.prompt)} and max_new={request.max_new} tokens, "
                f"there is room for {most}"
            )
        if len(self.waiting) >= self._serving.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests wait, engine.serving.max_waiting allows no more")
        sequence = ServedSequence(request=request, number=self._submitted, tokens=list(request.prompt))
        self._submitted += 1
        self.waiting.append(sequence)

    def take_back(self, key: str) -> ServedSequence | None:
        """End a request; None where there is no such."""
        found = next((one for one in (*self.waiting, *self.running) if one.request.key == key), None)
        if found is not None:
            self.end(found)
        return found

    def end(self, sequence: ServedSequence) -> None:
        """A request is done: its pages are free, or stay for others to find."""
        (self.waiting if sequence in self.waiting else self.running).remove(sequence)
        self._release(sequence)

    def plan(self) -> list[Part]:
        """What the next step takes; each sequence has pages for it."""
        self._read_ahead()
        self._admit()
        self._read_ahead()
        prompts = [one for one in self.running if one.left > 1]
        if self._engine.chunked_prefill:
            return self._decoding() + list(self._chunks())
        return list(_whole(prompts, self._serving.chunk_tokens)) if prompts else self._decoding()

    def computed(self, part: Part) -> None:
        """A part is done: whole pages can be found from now on."""
        sequence, size = part.sequence, self._serving.page_tokens
        sequence.computed = part.end
        if self._engine.prefix_cache and sequence.is_cached:
            for block in range(part.first // size, part.end // size):
                self.pool.name(sequence.pages[block], self._key(sequence, block))

    def _key(self, sequence: ServedSequence, block: int) -> bytes:
        size, keys = self._serving.page_tokens, sequence.keys
        while len(keys) <= block:
            at = len(keys) * size
            keys.append(next_key(keys[-1] if keys else self._first_key, sequence.tokens[at : at + size]))
        return keys[block]

    def _keys_to_find(self, sequence: ServedSequence) -> list[bytes]:
        """Of the pages that the cache may have for it: at least one token is left to compute."""
        if not self._engine.prefix_cache or not sequence.is_cached or sequence.is_scored:
            return []
        return [self._key(sequence, block) for block in range((len(sequence.tokens) - 1) // self._serving.page_tokens)]

    def _read_ahead(self) -> None:
        """Have pages fetched for as many of those that wait as may run at once, for the first to be admitted first."""
        soon = self.waiting[: self._serving.max_sequences]
        if soon != self._read_for:
            self._read_for = soon
            self._copies.read_ahead((key for key in self._keys_to_find(one) if key not in self.pool) for one in soon)

    def _admit(self) -> None:
        if self._engine.static_batch and self.running:
            return
        while self.waiting and len(self.running) < self.limit and self._give_pages(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
            self.running.sort(key=lambda one: one.number)

    def _give_pages(self, sequence: ServedSequence) -> bool:
        """Pages for all its tokens, as many as can be with contents; with one to spare for each that runs."""
        size = self._serving.page_tokens
        keys = self._keys_to_find(sequence)
        sequence.pages = self._share(keys)
        more = -(-len(sequence.tokens) // size) - len(sequence.pages)
        if self.pool.available < more + len(self.running):
            self._release(sequence)
            return False
        # Before any is fetched: pages that leave the device take none of their room.
        self._copies.use(keys[len(sequence.pages) :])
        filling = True
        known = len(sequence.pages)
        for block in range(known, known + more):
            page = self.pool.take()
            assert page is not None
            sequence.pages.append(page)
            filling = filling and block < len(keys) and self._fill(keys[block], page)
            if filling:
                self.pool.name(page, keys[block])
                known += 1
        self._found(sequence, known * size)
        return True

    def _found(self, sequence: ServedSequence, tokens: int) -> None:
        sequence.computed = tokens
        if sequence.cached is None:
            sequence.cached = min(tokens, len(sequence.request.prompt))
            self.counted["cached_prompt_tokens"] += sequence.cached

    def _share(self, keys: list[bytes]) -> list[int]:
        pages = []
        for key in keys:
            page = self.pool.share(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def _decoding(self) -> list[Part]:
        """One token of every sequence that needs no other, those that came first before those that came later."""
        chosen: list[Part] = []
        for sequence in list(self.running):
            if sequence.left == 1 and sequence in self.running and self._grown(sequence):
                chosen.append(_next(sequence, 1))
        return [part for part in chosen if part.sequence in self.running]

    def _grown(self, sequence: ServedSequence) -> bool:
        """Whether it has a page for its next token, at the expense of later ones if need be, or of itself."""
        while len(sequence.pages) * self._serving.page_tokens < len(sequence.tokens):
            page = self.pool.take()
            if page is not None:
                sequence.pages.append(page)
                continue
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _preempt(self, sequence: ServedSequence) -> None:
        """Its tokens are computed anew later: it waits before all that came after it."""
        self.counted["preempted"] += 1
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda one: one.number)

    def _release(self, sequence: ServedSequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages, sequence.computed = [], 0

    def _chunks(self) -> Iterator[Part]:
        """Parts of prompts, up to `chunk_tokens` together."""
        room = self._serving.chunk_tokens
        for sequence in self.running:
            if sequence.left > 1 and room:
                count = min(sequence.left, room)
                room -= count
                yield _next(sequence, count)


def _whole(prompts: list[ServedSequence], tokens: int) -> Iterator[Part]:
    """Prompts as a whole: the first, and those after it that fit into so many tokens with it.

    Logits of a whole prompt would take too much memory: one that is scored goes in parts of so many tokens.
    """
    most = tokens
    for sequence in prompts:
        count = min(sequence.left, most) if sequence.is_scored else sequence.left
        yield _next(sequence, count)
        tokens -= count
        if tokens <= 0:
            return
