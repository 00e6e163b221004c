"""The disk level under damage, full disks, killed writers and other processes: serving goes on, with one warning."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ktbench.engine.serving.disk import DiskPages
from ktbench.engine.serving.page_folder import HEADER_BYTES, PageFolder
from tests.engine.serving.pages import BLOCK, content_of, damage, file_of, files, key_of, opened, written
from tests.full_disk import files_up_to

FEW_KILLS, MANY_KILLS = 6, 60


@pytest.fixture
def full_disk() -> Iterator[None]:
    with files_up_to(50_000):
        yield


def test_every_flipped_bit_of_a_header_and_any_of_the_content_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random, length = Random(5), 5000
    bits = [*range(8 * HEADER_BYTES), *random.sample(range(8 * HEADER_BYTES, 8 * (HEADER_BYTES + length)), 100)]
    with opened(tmp_path) as pages:
        for number, bit in enumerate(bits, start=1):
            pages.put(b"key 0", content_of(0, length))
            written(pages)
            file = file_of(pages, 0)
            content = bytearray(file.read_bytes())
            content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            assert pages.contains(b"key 0") and pages.get(b"key 0") is None, bit
            assert not file.exists() and not pages.contains(b"key 0")
            assert pages.counters()["disk_damaged"] == number
    assert len(caplog.records) == 1 and str(tmp_path) in caplog.text


@pytest.mark.parametrize("ahead", [False, True])
def test_damaged_pages_are_misses_and_are_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead: bool
) -> None:
    random = Random(7)
    with opened(tmp_path) as pages:
        for i in range(40):
            pages.put(key_of(i), content_of(i, 2000))
    with opened(tmp_path) as pages:
        for i in range(0, 40, 2):
            damage(file_of(pages, i), random)
        if ahead:
            pages.read_ahead([key_of(i)] for i in range(40))
        for i in range(40):
            assert pages.get(key_of(i)) == (content_of(i, 2000) if i % 2 else None)
        assert pages.counters()["disk_damaged"] == 20 and len(files(tmp_path)) == 20
        for i in range(40):
            pages.put(key_of(i), content_of(i, 2000))
        written(pages)
        assert all(pages.get(key_of(i)) == content_of(i, 2000) for i in range(40))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("identity", ["model", "another"])
def test_a_page_under_the_name_of_another_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, identity: str
) -> None:
    with opened(tmp_path, identity=identity) as pages:
        pages.put(key_of(1), b"page")
        written(pages)
        other = file_of(pages, 1)
    with opened(tmp_path) as pages:
        shutil.copy(other, file_of(pages, 2))
    with opened(tmp_path) as pages:
        assert pages.get(key_of(2)) is None
    assert len(caplog.records) == 1


def test_what_is_no_page_is_never_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(5 * BLOCK))
    (tmp_path / f"{'0' * 32}.page").mkdir()
    (tmp_path / f"{'1' * 32}.page").symlink_to(tmp_path / "notes.txt")
    with opened(tmp_path, limit=BLOCK) as pages:
        for i in range(5):
            pages.put(key_of(i), b"page")
        assert written(pages)["disk_pages"] == 1
    assert (tmp_path / "notes.txt").read_bytes() == bytes(5 * BLOCK)
    assert (tmp_path / f"{'0' * 32}.page").is_dir() and (tmp_path / f"{'1' * 32}.page").is_symlink()
    assert not caplog.records


def test_pages_deleted_by_others_are_misses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as pages:
        pages.put(key_of(1), b"page")
        written(pages)
        shutil.rmtree(tmp_path)
        assert pages.get(key_of(1)) is None and pages.counters()["disk_bytes"] == 0
        pages.put(key_of(1), b"page")
        written(pages)
        assert pages.get(key_of(1)) == b"page"
    assert not caplog.records


def test_a_full_disk_ends_writing_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full_disk: None
) -> None:
    with opened(tmp_path) as pages:
        pages.put(key_of(1), content_of(1, 40_000))
        written(pages)
        for i in range(2, 6):
            pages.put(key_of(i), content_of(i, 60_000))
            written(pages)
        pages.put(key_of(6), b"small")
        counts = written(pages)
        assert pages.get(key_of(1)) == content_of(1, 40_000) and pages.get(key_of(2)) is None
    assert (counts["disk_written"], counts["disk_dropped"]) == (1, 5)
    assert len(caplog.records) == 1 and "File too large" in caplog.text
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([files(tmp_path)[0].name, "lock"])


def test_pages_are_written_again_once_a_full_disk_has_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full_disk: None
) -> None:
    now_s = 0.0
    with opened(tmp_path, retry_s=30, clock=lambda: now_s) as pages:
        for i in (1, 2):  # tried again after a while, and refused again, with no second warning
            pages.put(key_of(i), content_of(i, 60_000))
            assert written(pages)["disk_dropped"] == 2 * i - 1
            pages.put(key_of(i + 10), b"small")
            assert written(pages)["disk_dropped"] == 2 * i
            now_s += 30
        assert len(caplog.records) == 1
        pages.put(key_of(3), b"small")
        assert written(pages)["disk_written"] == 1
        pages.put(key_of(4), content_of(4, 60_000))
        written(pages)
        assert len(caplog.records) == 2
        assert pages.get(key_of(3)) == b"small"


def test_pages_that_cannot_be_deleted_end_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as pages:
        for i in range(4):
            pages.put(key_of(i), b"page")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(PageFolder, "delete", refuse)
    with opened(tmp_path, limit=2 * BLOCK) as pages:
        pages.put(key_of(5), b"page")
        assert pages.get(key_of(3)) == b"page" and pages.get(key_of(5)) is None
    assert len(caplog.records) == 1 and len(files(tmp_path)) == 4


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as pages:
        pages.put(key_of(1), b"page")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()  # root may write anywhere else
    with opened(tmp_path) as pages:
        pages.put(key_of(2), b"page")
        pages.read_ahead([[key_of(1)]])
        assert pages.get(key_of(1)) == b"page" and pages.get(key_of(2)) is None
        assert pages.counters()["disk_dropped"] == 1
    assert len(caplog.records) == 1
    with opened(Path("/proc/none/folder")) as pages:
        pages.put(key_of(1), b"page")
        assert pages.get(key_of(1)) is None
    assert len(caplog.records) == 2


def test_a_link_for_a_lock_makes_no_file_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, elsewhere = tmp_path / "pages", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "lock").symlink_to(elsewhere)
    with opened(folder) as pages:
        pages.put(key_of(1), b"page")
        assert pages.counters()["disk_dropped"] == 1
    assert not elsewhere.exists()
    assert len(caplog.records) == 1 and "lock: it is no regular file" in caplog.text


def test_bad_requests_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for folder, limit in ((tmp_path / "plain", 1), (tmp_path / "new", 0)):
        with pytest.raises(ValueError, match=str(folder)):
            DiskPages(folder, limit, "model")
    assert not (tmp_path / "new").exists()


def in_child(work: Callable[[], int]) -> int:
    """The process of a child that does this and ends with its result."""
    if (child := os.fork()) == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    def attempt() -> int:
        try:
            DiskPages(tmp_path, BLOCK, "another")
        except ValueError as error:
            return 7 if str(tmp_path) in str(error) else 8
        return 0

    with opened(tmp_path):
        assert os.waitstatus_to_exitcode(os.waitpid(in_child(attempt), 0)[1]) == 7
        with pytest.raises(ValueError, match="another process"):
            DiskPages(tmp_path, BLOCK, "model")
    assert os.waitstatus_to_exitcode(os.waitpid(in_child(attempt), 0)[1]) == 0


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.thorough)])
def test_killed_writers_leave_whole_pages_within_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kills: int
) -> None:
    random, limit = Random(1), 40 * 30_000
    lengths = [random.randrange(60_000) for _ in range(100)]

    def write(begun: int) -> int:
        random = Random(os.getpid())
        pages = DiskPages(tmp_path, limit, "model")
        pages.put(key_of(0), content_of(0, lengths[0]))
        pages.flush()
        os.write(begun, b".")
        while True:
            i = random.randrange(100)
            if pages.get(key_of(i)) is None:
                pages.put(key_of(i), content_of(i, lengths[i]))

    for _ in range(kills):
        reading, writing = os.pipe()
        child = in_child(partial(write, writing))
        os.close(writing)
        assert os.read(reading, 1)  # how long a process takes to begin is the machine's matter
        os.close(reading)
        time.sleep(random.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with opened(tmp_path, limit=limit) as pages:
            found = {i: content for i in range(100) if (content := pages.get(key_of(i))) is not None}
            assert found and found == {i: content_of(i, lengths[i]) for i in found}
            assert len(found) == len(files(tmp_path)) == pages.counters()["disk_pages"]
            assert pages.counters()["disk_bytes"] <= limit
            assert not list(tmp_path.glob(".*"))
    assert not caplog.records
