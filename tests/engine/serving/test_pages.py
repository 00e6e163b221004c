"""No page is lost or held by two whose contents differ, whatever is taken, shared, named and let go."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ktbench.engine.serving.pages import PagePool
from ktbench.engine.serving.prefix import PageCopies, next_key

PAGES = 7


class Pool(RuleBasedStateMachine):
    """Against what every holder knows to have in its pages."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[bytes, int]] = []
        self.pool = PagePool(PAGES, lambda key, page: self.evicted.append((key, page)))
        self.held: list[tuple[int, bytes | None]] = []
        self.contents: dict[int, bytes] = {}

    @rule()
    def take(self) -> None:
        available, before = self.pool.available, len(self.evicted)
        page = self.pool.take()
        assert (page is None) == (available == 0)
        for key, gone in self.evicted[before:]:
            assert self.contents.pop(gone) == key
        if page is not None:
            assert 1 <= page <= PAGES and page not in [one for one, _ in self.held]
            assert page not in self.contents
            self.held.append((page, None))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(0, 9))
    def name(self, data: st.DataObject, key: int) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        page, named = self.held[at]
        content = bytes([key])
        if named is None and self.pool.share(content) is None:
            self.pool.name(page, content)
            self.held[at], self.contents[page] = (page, content), content
        elif named is None:
            self.held.append((next(one for one, of in self.contents.items() if of == content), content))

    @rule(key=st.integers(0, 9))
    def share(self, key: int) -> None:
        page = self.pool.share(bytes([key]))
        assert (page is not None) == (bytes([key]) in self.contents.values())
        if page is not None:
            assert self.contents[page] == bytes([key])
            self.held.append((page, bytes([key])))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release([self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))[0]])

    @invariant()
    def every_page_is_somewhere(self) -> None:
        used = len({page for page, _ in self.held})
        assert used + self.pool.free + self.pool.cached == PAGES

    def teardown(self) -> None:
        self.pool.release([page for page, _ in self.held])
        assert self.pool.free + self.pool.cached == PAGES
        self.pool.drop_cached()
        assert self.pool.free == PAGES


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def test_the_page_let_go_first_makes_room_first() -> None:
    gone: list[bytes] = []
    pool = PagePool(3, lambda key, page: gone.append(key))
    pages = [pool.take() for _ in range(3)]
    for page, key in zip(pages, (b"first", b"middle", b"last"), strict=True):
        assert page is not None
        pool.name(page, key)
    pool.release([page for page in pages if page is not None])
    pool.take()
    assert gone == [b"last"]  # of one sequence its end, without which its begin is still of use
    pool.take()
    assert gone == [b"last", b"middle"]


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_keys_are_equal_where_all_tokens_so_far_are(one: list[int], other: list[int]) -> None:
    def keys(tokens: list[int]) -> list[bytes]:
        found = [b""]
        for token in tokens:
            found.append(next_key(found[-1], [token]))
        return found

    for number, (a, b) in enumerate(zip(keys(one), keys(other), strict=False)):
        assert (a == b) == (one[:number] == other[:number])


def content(number: int) -> torch.Tensor:
    return torch.full((8,), float(number), dtype=torch.bfloat16)


class Disk(dict[bytes, bytes]):
    """The level below, in a dict."""

    def put(self, key: bytes, content: memoryview, *, wait: bool) -> None:
        self[key] = bytes(content)

    def read_ahead(self, keys: object) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def test_copies_stay_within_their_limit_and_go_to_the_disk() -> None:
    disk = Disk()
    copies = PageCopies(3 * 16, disk)
    for number in range(5):
        copies.put(bytes([number]), content(number))
        assert copies.nbytes <= 3 * 16
    assert set(disk) == {b"\0", b"\1"}
    for number in range(5):
        to = content(9)
        assert copies.take(bytes([number]), to) and torch.equal(to, content(number))
    assert copies.counters()["ram_pages_read"] == 3 and copies.nbytes == 0
    assert not copies.take(b"none", content(9)) and not copies.take(b"\4", content(9))
    for number in range(5):
        copies.put(bytes([number]), content(number))
    copies.close()
    assert len(disk) == 5 and copies.nbytes == 0


def test_of_a_prompt_memory_keeps_its_begin_longest() -> None:
    copies = PageCopies(3 * 16, None)
    for number in (0, 1, 2, 3):
        copies.put(bytes([number]), content(number))
    copies.use([b"\1", b"\2"])
    for number in (4, 5):
        copies.put(bytes([number]), content(number))
    assert [copies.take(bytes([number]), content(9)) for number in range(6)] == [False, True, False, False, True, True]


def test_without_a_level_below_copies_are_gone() -> None:
    copies = PageCopies(0, None)
    copies.put(b"a", content(1))
    assert copies.nbytes == 0 and not copies.take(b"a", content(2))
