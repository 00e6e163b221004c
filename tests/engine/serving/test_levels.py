"""Scheduler, pages and their copies together, without a network: what a prompt finds, and what is fetched for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.serving.disk import DiskPages
from ktbench.engine.serving.page_folder import PageFolder
from ktbench.engine.serving.pages import PagePool
from ktbench.engine.serving.prefix import PageCopies, next_key
from ktbench.engine.serving.requests import ServeRequest
from ktbench.engine.serving.scheduler import Scheduler, ServedSequence
from ktbench.spec.engine import EngineSpec, ServingSpec
from tests.engine.serving.pages import BLOCK, opened, until_ahead

SIZE = 2  # tokens of a page
DEVICE = 4  # pages, enough for one request
CHAIN = 3  # pages of a prompt that can be found


class Served:
    """Requests that run one at a time."""

    def __init__(self, ram_pages: int, disk: DiskPages | None) -> None:
        numbers = torch.zeros(DEVICE + 1, 8, dtype=torch.bfloat16)
        self.disk, self.copies = disk, PageCopies(ram_pages * numbers[0].nbytes, disk)
        self.pool = PagePool(DEVICE, lambda key, page: self.copies.put(key, numbers[page]))
        engine = EngineSpec(prefix_cache=True, serving=ServingSpec(page_tokens=SIZE))
        self.scheduler = Scheduler(
            engine, self.pool, self.copies, lambda key, page: self.copies.take(key, numbers[page]), b""
        )

    def submit(self, prompt: tuple[int, ...], key: str = "request") -> None:
        self.scheduler.submit(ServeRequest(key=key, prompt=prompt, max_new=1))

    def run(self) -> ServedSequence | None:
        """A request from its admission to its end; None where none waits."""
        parts = self.scheduler.plan()
        for part in parts:
            self.scheduler.computed(part)
            self.scheduler.end(part.sequence)
        if self.disk is not None:
            self.disk.flush()
        return parts[0].sequence if parts else None

    def has(self, key: bytes) -> bool:
        """Whether a level has a page."""
        on_disk = self.disk is not None and self.disk.contains(key)
        return key in self.pool or key in self.copies._held or on_disk

    def begin(self, prompt: tuple[int, ...]) -> list[bytes]:
        """Keys of its pages before the first that no level has."""
        return list(takewhile(self.has, keys_of(prompt)))


def keys_of(prompt: tuple[int, ...]) -> list[bytes]:
    """Of its pages that can be found."""
    pages = [prompt[at : at + SIZE] for at in range(0, SIZE * CHAIN, SIZE)]
    return list(accumulate(pages, next_key, initial=b""))[1:]


prompts = st.tuples(*[st.integers(0, 2)] * CHAIN).map(lambda chosen: (*(one for i in chosen for one in (i, i)), 9))


ROOM = CHAIN + DEVICE  # for a prompt and for all that leaves the device when it is admitted


@contextmanager
def levels(ram_pages: int, disk_pages: int) -> Iterator[Served]:
    if not disk_pages:
        yield Served(ram_pages, None)
        return
    with TemporaryDirectory() as folder, opened(Path(folder), limit=disk_pages * BLOCK) as disk:
        yield Served(ram_pages, disk)


@pytest.mark.parametrize(("ram_pages", "disk_pages"), [(ROOM, 0), (0, ROOM), (2, ROOM), (ROOM, ROOM)])
@given(trace=st.lists(prompts, max_size=25))
def test_a_prompt_finds_all_that_is_there_when_it_comes(
    ram_pages: int, disk_pages: int, trace: list[tuple[int, ...]]
) -> None:
    """Pages that leave the device for it take the room of others."""
    with levels(ram_pages, disk_pages) as served:
        for prompt in trace:
            there = served.begin(prompt)
            served.submit(prompt)
            ran = served.run()
            assert ran is not None and ran.cached == SIZE * len(there)


@given(ram_pages=st.integers(0, ROOM), trace=st.lists(prompts, max_size=25))
def test_memory_and_device_have_begins_of_prompts_and_each_page_once(
    ram_pages: int, trace: list[tuple[int, ...]]
) -> None:
    served = Served(ram_pages, None)
    for prompt in trace:
        served.submit(prompt)
        served.run()
        assert not any(key in served.pool for key in served.copies._held)
        for one in trace:
            assert served.begin(one) == [key for key in keys_of(one) if served.has(key)]


def test_pages_that_a_level_above_has_are_not_used_on_the_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        served = Served(ROOM, disk)

        def run(i: int) -> int | None:
            served.submit(prompt_of(i))
            ran = served.run()
            return ran.cached if ran else None

        def used() -> list[tuple[str, int]]:
            return [(page.name, page.used_ns) for page in disk._folder.pages()]

        for i in (0, 1):
            run(i)
        served.copies.to_disk()  # the pages of the first prompt
        written = used()
        assert len(written) == CHAIN
        assert run(0) == CHAIN * SIZE
        fetched = used()
        assert fetched != written
        run(1)  # they leave the device for memory
        for _ in ("memory", "device"):
            assert run(0) == CHAIN * SIZE
        assert used() == fetched


def prompt_of(i: int) -> tuple[int, ...]:
    return (*(i for _ in range(SIZE * CHAIN)), 9)


@contextmanager
def reads_of_steps() -> Iterator[list[str]]:
    """Pages that the thread of the steps reads itself."""
    late: list[str] = []
    original = PageFolder.read

    def read(self: PageFolder, name: str) -> memoryview:
        if threading.current_thread() is threading.main_thread():
            late.append(name)
        return original(self, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PageFolder, "read", read)
        yield late


REQUESTS = 10
FITS = 2  # prompts that are read ahead


@given(data=st.data())
def test_pages_of_whoever_is_next_are_in_memory(data: st.DataObject) -> None:
    """Whatever was submitted behind them, and whoever before them was taken back."""
    with TemporaryDirectory() as folder:
        with opened(Path(folder)) as disk:
            served = Served(0, disk)
            for i in range(REQUESTS):
                served.submit(prompt_of(i))
                served.run()
            served.pool.drop_cached()
        with opened(Path(folder), memory=FITS * CHAIN * BLOCK) as disk, reads_of_steps() as late:
            served, waiting = Served(0, disk), list[int]()
            served.submit((5,), "first")  # runs while others come
            (part,) = served.scheduler.plan()
            for i in range(REQUESTS):
                served.submit(prompt_of(i), str(i))
                waiting.append(i)
                for gone in data.draw(st.sets(st.sampled_from(waiting))):
                    waiting.remove(gone)
                    served.scheduler.take_back(str(gone))
                served.scheduler.plan()
            served.scheduler.end(part.sequence)
            while waiting:
                until_ahead(disk, CHAIN * min(FITS, len(waiting)))
                ran = served.run()
                assert ran is not None and ran.request.key == str(waiting.pop(0)) and ran.cached == SIZE * CHAIN
            assert not late
            assert disk.counters()["disk_ahead"] == 0


def test_nothing_is_read_that_the_device_has(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        served = Served(0, disk)
        for i in (0, 1, 0):  # the last comes from the disk, which keeps its pages
            served.submit(prompt_of(i))
            served.run()
        served.submit((5,), "first")
        served.scheduler.plan()
        for i in (0, 1):
            served.submit(prompt_of(i), str(i))
        served.scheduler.plan()
        until_ahead(disk, CHAIN)
        assert served.scheduler.take_back("1")
        served.scheduler.plan()
        until_ahead(disk, 0)
