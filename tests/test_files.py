"""A file has its old content or its new one, whatever happens to the writer."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ktbench.files import NotWritten, whole_file, write_whole
from ktbench.spec.errors import error_text
from tests.full_disk import files_up_to

OLD, NEW = b"old" * 1000, b"new" * 40_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file.txt").write_bytes(OLD)
    return tmp_path / "file.txt"


@pytest.fixture
def full_disk() -> Iterator[None]:
    with files_up_to(50_000):
        yield


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_replaced_and_nothing_else_is_left(path: Path, synced: bool) -> None:
    assert write_whole(path, NEW, synced=synced) == path
    assert path.read_bytes() == NEW and names(path) == ["file.txt"]
    write_whole(path.parent / "a" / "b" / "text", "ä\r\n", synced=synced)
    assert (path.parent / "a" / "b" / "text").read_bytes() == "ä\r\n".encode()


def test_a_full_disk_leaves_the_old_file_and_names_it(path: Path, full_disk: None) -> None:
    with pytest.raises(NotWritten) as raised:
        write_whole(path, NEW)
    assert raised.value.errno == errno.EFBIG and raised.value.filename == str(path)
    said = error_text(raised.value)
    assert said.startswith(f"{path}: File too large: ") and said.endswith("repeat the command")
    assert error_text(raised.value.but_then("do something else")).endswith("then do something else")
    assert path.read_bytes() == OLD and names(path) == ["file.txt"]


def test_a_writer_that_raises_leaves_the_old_file(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_bytes(NEW)
        raise KeyboardInterrupt
    assert path.read_bytes() == OLD and names(path) == ["file.txt"]


def test_errors_of_other_files_are_theirs(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), whole_file(path):
        (path.parent / "missing").read_bytes()
    with pytest.raises(NotWritten, match="inner"), whole_file(path):
        raise NotWritten(Path("inner"), errno.EIO, "Input/output error")
    assert path.read_bytes() == OLD and names(path) == ["file.txt"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for place in (Path("/proc/none/file"), tmp_path / "plain" / "file"):
        with pytest.raises(NotWritten) as raised:
            write_whole(place, "")
        assert error_text(raised.value).startswith(f"{place}: ")


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    place = Path("/dev/null") if kind == "device" else tmp_path / kind
    if kind != "device":
        (os.mkfifo if kind == "pipe" else os.mkdir)(place)
    before = place.stat()
    with pytest.raises(NotWritten, match="no regular file"):
        write_whole(place, NEW)
    assert place.stat().st_mode == before.st_mode and place.stat().st_ino == before.st_ino


def test_what_a_link_beside_a_file_leads_to_is_not_written(path: Path) -> None:
    """Folders that files are written to come from others, too."""
    victim = path.parent / "victim"
    victim.write_text("a key")
    (path.parent / f".{path.name}.part").symlink_to(victim)
    with pytest.raises(NotWritten, match="no regular file"):
        write_whole(path, NEW)
    assert victim.read_text() == "a key" and path.read_bytes() == OLD


def test_two_writers_do_not_mix(path: Path) -> None:
    with whole_file(path) as part:
        part.write_bytes(NEW)
        with pytest.raises(NotWritten, match="another process is writing it"):
            write_whole(path, b"third")
    assert path.read_bytes() == NEW and names(path) == ["file.txt"]


def test_killed_writers_leave_one_of_the_whole_contents(path: Path) -> None:
    random, contents = Random(1), {OLD} | {bytes([n]) * (1 + n * 9000) for n in range(20)}
    new = sorted(contents - {OLD}, key=len)
    for _ in range(25):
        if (child := os.fork()) == 0:
            for content in random.sample(new, len(new)) * 50:
                write_whole(path, content)
            os._exit(0)
        time.sleep(random.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_bytes() in contents
        assert set(names(path)) <= {"file.txt", ".file.txt.part"}
    write_whole(path, b"last")  # what a killed writer has left holds nobody up
    assert path.read_bytes() == b"last" and names(path) == ["file.txt"]
