"""The disk level against a dictionary: what is put is got, or is not there; the least recently used makes room."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.serving.disk import DiskPages
from ktbench.engine.serving.page_folder import HEADER_BYTES, PageFolder
from tests.engine.serving.pages import BLOCK, content_of, damage, file_of, files, key_of, opened, until_ahead, written

KEYS = range(8)
LIMIT = 6  # blocks


def blocks_of(i: int) -> int:
    """Pages of one to three blocks."""
    return 1 + i % 3


def whole_blocks(i: int) -> bytes:
    return content_of(i, blocks_of(i) * BLOCK - HEADER_BYTES)


class Model:
    """What the folder holds, the least recently used first."""

    def __init__(self) -> None:
        self.held: OrderedDict[int, bool] = OrderedDict()  # whether it is whole

    def put(self, i: int) -> None:
        if i not in self.held:
            while sum(map(blocks_of, self.held)) + blocks_of(i) > LIMIT:
                self.held.popitem(last=False)
            self.held[i] = True
        self.held.move_to_end(i)

    def get(self, i: int) -> bool:
        if self.held.get(i):
            return True
        self.held.pop(i, None)
        return False

    def use(self, prompt: list[int]) -> None:
        for i in reversed(prompt):
            if i in self.held:
                self.held.move_to_end(i)


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "get", "damage"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["ahead", "use"]), st.lists(st.sampled_from(KEYS), max_size=4, unique=True)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=40,
)


@given(operations=operations)
def test_any_sequence_is_that_of_a_dictionary(operations: list[tuple[str, object]]) -> None:
    model = Model()
    with TemporaryDirectory() as folder:
        pages = DiskPages(Path(folder), LIMIT * BLOCK, "model")
        for name, argument in operations:
            if name == "restart":
                pages.close()
                pages = DiskPages(Path(folder), LIMIT * BLOCK, "model")
            elif isinstance(argument, list) and name == "use":
                pages.use([key_of(i) for i in argument])
                model.use(argument)
            elif isinstance(argument, list):
                pages.read_ahead([map(key_of, argument)])
                for i in argument:
                    assert pages.get(key_of(i)) == (whole_blocks(i) if model.get(i) else None)
            else:
                assert isinstance(argument, int)
                one_step(pages, model, name, argument)
            written(pages)
            assert [pages.contains(key_of(i)) for i in KEYS] == [i in model.held for i in KEYS]
            held = pages.counters()
            assert held["disk_bytes"] == sum(map(blocks_of, model.held)) * BLOCK <= LIMIT * BLOCK
            assert held["disk_pages"] == len(files(Path(folder))) == len(model.held)
        pages.close()


def one_step(pages: DiskPages, model: Model, name: str, i: int) -> None:
    if name == "put":
        pages.put(key_of(i), whole_blocks(i))
        model.put(i)
    elif name == "get":
        assert pages.get(key_of(i)) == (whole_blocks(i) if model.get(i) else None)
    elif i in model.held:
        damage(file_of(pages, i), Random(i), ["flip"])  # others change how many blocks there are
        model.held[i] = False


def test_what_is_got_while_pages_come_and_go_is_whole(tmp_path: Path) -> None:
    random, puts, hits = Random(3), 0, 0
    with opened(tmp_path, limit=20 * BLOCK, memory=8 * BLOCK) as pages:
        for n in range(1500):
            i = random.randrange(40)
            if n % 100 == 99:
                written(pages)  # a busy machine may write nothing for long, and then has nothing to delete
            if random.random() < 0.5:
                pages.put(key_of(i), whole_blocks(i))
                puts += 1
            elif random.random() < 0.3:
                pages.read_ahead([key_of(random.randrange(40))] for _ in range(6))
            elif (found := pages.get(key_of(i))) is not None:
                assert found == whole_blocks(i)
                hits += 1
            assert pages.counters()["disk_bytes"] <= 20 * BLOCK
    counts = pages.counters()
    assert hits and counts["disk_hits"] == hits
    assert counts["disk_damaged"] == 0 and counts["disk_deleted"] > 0
    assert counts["disk_written"] - counts["disk_deleted"] == counts["disk_pages"] == len(files(tmp_path))
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 20 * BLOCK


@pytest.mark.parametrize("length", [0, 1, 1000, 300_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_page_is_a_copy_of_any_length_and_kind(tmp_path: Path, length: int, kind: type) -> None:
    content = bytearray(content_of(1, length))
    with opened(tmp_path) as pages:
        pages.put(b"", kind(content))
        content[:] = bytes(length)
        assert pages.get(b"") == content_of(1, length)
    with opened(tmp_path) as pages:
        pages.read_ahead([[b""]])
        assert pages.get(b"") == pages.get(b"") == content_of(1, length)


def test_a_key_of_any_length_has_a_page_of_its_own(tmp_path: Path) -> None:
    keys = [b"", b"\0", b"../up", b"k" * 4000, b"k" * 4001]
    with opened(tmp_path) as pages:
        for key in keys:
            pages.put(key, key)
    with opened(tmp_path) as pages:
        assert [pages.get(key) for key in keys] == keys
        assert pages.get(b"other") is None


def test_models_share_a_folder_and_its_limit_but_no_page(tmp_path: Path) -> None:
    with opened(tmp_path, identity="one model") as pages:
        pages.put(b"key", b"of one")
    with opened(tmp_path, identity=b"another", limit=2 * BLOCK) as pages:
        assert pages.get(b"key") is None and not pages.contains(b"key")
        pages.put(b"key", b"of another")
        assert written(pages)["disk_pages"] == 2
        pages.put(b"next", b"of another")
        assert written(pages)["disk_pages"] == 2
    with opened(tmp_path, identity="one model") as pages:
        assert pages.get(b"key") is None, "the other model's pages are more recent"
    with opened(tmp_path, identity="another") as pages:
        assert pages.get(b"key") == b"of another"


def test_a_smaller_limit_deletes_the_least_recently_used_at_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        for i in range(6):
            pages.put(key_of(i), b"page")
        written(pages)
        pages.use([key_of(0), key_of(2)])
    with opened(tmp_path, limit=3 * BLOCK) as pages:
        assert {i for i in range(6) if pages.contains(key_of(i))} == {0, 2, 5}
        assert len(files(tmp_path)) == 3
    with opened(tmp_path, limit=BLOCK) as pages:
        assert pages.contains(key_of(0)), "of a prompt its begin stays longest"


def test_a_page_larger_than_the_limit_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path, limit=BLOCK) as pages:
        pages.put(b"small", b"page")
        pages.put(b"large", bytes(BLOCK))
        counts = written(pages)
        assert pages.contains(b"small") and not pages.contains(b"large")
    assert counts["disk_dropped"] == 1 and counts["disk_deleted"] == 0


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[threading.Event]:
    """The disk does not answer until the event, or the end of the block."""
    answer, original = threading.Event(), getattr(PageFolder, method)

    def late(self: PageFolder, *arguments: object) -> object:
        answer.wait()
        return original(self, *arguments)

    monkeypatch.setattr(PageFolder, method, late)
    try:
        yield answer
    finally:
        answer.set()


def test_a_disk_that_does_not_answer_costs_pages_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, memory=10 * 1000) as pages:
        with held_up(monkeypatch, "write"):
            for i in range(50):
                pages.put(key_of(i), content_of(i, 1000))
            assert pages.counters()["disk_dropped"] == 40
            assert [pages.get(key_of(i)) for i in range(10)] == [content_of(i, 1000) for i in range(10)]
            assert not pages.contains(key_of(10))
        assert written(pages)["disk_written"] == 10
        pages.put(key_of(10), b"there is room again")
    with opened(tmp_path) as pages:
        assert pages.get(key_of(10)) == b"there is room again"


def test_reading_ahead_is_bounded_and_does_not_hold_up_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, memory=4 * BLOCK) as pages:
        for i in range(10):
            pages.put(key_of(i), content_of(i, 1000))
            written(pages)
        with held_up(monkeypatch, "read"):
            pages.read_ahead([map(key_of, range(10))])
            assert pages.counters()["disk_ahead"] == 0
        until_ahead(pages, 4)
        monkeypatch.setattr(PageFolder, "read", None)  # what is read ahead is in memory
        assert [pages.get(key_of(i)) for i in range(4)] == [content_of(i, 1000) for i in range(4)]
        assert pages.counters()["disk_ahead"] == 0


def test_a_page_that_is_being_read_ahead_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    with opened(tmp_path) as pages:
        pages.put(b"key", b"page")
        written(pages)
        with held_up(monkeypatch, "read") as answer:
            late = PageFolder.read
            monkeypatch.setattr(PageFolder, "read", lambda self, name: begun.append(name) or late(self, name))
            pages.read_ahead([[b"key"]])
            while not begun:
                time.sleep(0.001)
            pages.read_ahead([[b"key"]])
            threading.Timer(0.05, answer.set).start()
            assert pages.get(b"key") == b"page"
    assert len(begun) == 1


prompts = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), max_size=4)


@given(calls=st.lists(prompts, min_size=1, max_size=4))
def test_what_is_asked_for_first_is_read_ahead_and_nothing_else(calls: list[list[list[int]]]) -> None:
    """Pages 0 to 7 are held, and memory takes 4."""
    with TemporaryDirectory() as folder, opened(Path(folder), memory=4 * BLOCK) as pages:
        for i in range(8):
            pages.put(key_of(i), content_of(i, 1000), wait=True)
        written(pages)
        for call in calls:
            pages.read_ahead(map(key_of, prompt) for prompt in call)
            useful = [i for prompt in call for i in takewhile(range(8).__contains__, prompt)]
            ahead = list(dict.fromkeys(useful))[:4]
            until_ahead(pages, len(ahead))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PageFolder, "read", None)  # what is read ahead is in memory
            assert [pages.get(key_of(i)) for i in ahead] == [content_of(i, 1000) for i in ahead]
        assert pages.counters()["disk_ahead"] == 0


def test_a_page_read_ahead_is_kept_when_the_disk_deletes_it(tmp_path: Path) -> None:
    with opened(tmp_path, limit=2 * BLOCK) as pages:
        for i in range(2):
            pages.put(key_of(i), b"page")
            written(pages)
        pages.read_ahead([[key_of(0)]])
        until_ahead(pages, 1)
        pages.put(key_of(2), b"page")
        written(pages)
        assert not pages.contains(key_of(0))
        pages.read_ahead([[key_of(0), key_of(1)]])
        until_ahead(pages, 2)
        assert pages.get(key_of(0)) == b"page"


def test_a_put_that_waits_drops_nothing(tmp_path: Path) -> None:
    """What an engine leaves at its end is more than the queue has room for."""
    with opened(tmp_path, memory=2 * BLOCK) as pages:
        for i in range(30):
            pages.put(key_of(i), whole_blocks(0), wait=True)
        pages.flush()
        assert (pages.counters()["disk_written"], pages.counters()["disk_dropped"]) == (30, 0)
        pages.put(key_of(99), bytes(3 * BLOCK), wait=True)  # more than the queue ever takes
        assert pages.counters()["disk_dropped"] == 1
