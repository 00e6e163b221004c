"""The log keeps what it was given, drops half a line, and refuses damage by line."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.core.outcome import Outcome
from ktbench.core.record import Environment, Header, Part, Record
from ktbench.store import LOG_NAME, Log, StoreError, read_run
from ktbench.store.log import encode
from tests.tiny import tiny_cell

CELL = tiny_cell()
HEADER = Header(
    run="r", title="t", ablation="a", created="", command=("c",), cells=(CELL,),
    parts=(Part(name="", title="t", baseline="base"),), measure=CELL.spec.measure, code_id="code", env_id="env",
)  # fmt: skip


LATER = b'"schema":99,"kind":"header","body":{}}'


def record(number: int, samples_s: tuple[float, ...] = (0.5,)) -> Record:
    return Record(
        cell=CELL.key, label="base", round=number, outcome=Outcome.OK, samples_s=samples_s, provenance="measured",
        code_id="code", env_id="env", sitting="s", started="",
    )  # fmt: skip


def filled(folder: Path, *facts: Record | Environment) -> Path:
    log = Log(folder)
    for fact in (HEADER, *facts):
        log.append(fact)
    log.close()
    return folder / LOG_NAME


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=0), min_size=1))
def test_every_sample_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, samples_s: list[float]) -> None:
    folder = tmp_path_factory.mktemp("run")
    filled(folder, record(0, tuple(samples_s)))
    assert read_run(folder).records[0].samples_s == tuple(samples_s)


@given(st.integers(1, len(encode(record(1))) - 1))
def test_half_a_line_is_dropped_and_the_log_goes_on(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = filled(folder, record(0))
    with path.open("ab") as file:
        file.write(encode(record(1))[:cut])
    assert [r.round for r in read_run(folder).records] == [0]
    log = Log(folder)
    log.append(record(2))
    log.close()
    assert [r.round for r in read_run(folder).records] == [0, 2]


@given(st.data())
def test_a_changed_byte_is_never_read_as_a_number(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = filled(folder, record(0))
    content = bytearray(path.read_bytes())
    start = content.index(b"\n") + 1
    where = data.draw(st.integers(start, len(content) - 2))
    content[where] ^= 1 << data.draw(st.integers(0, 6))
    path.write_bytes(content)
    try:
        read_run(folder)
    except StoreError as error:
        assert f"{path}:2" in str(error)
    else:
        raise AssertionError("damage went unnoticed")


def test_two_writers_are_refused(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(StoreError, match="another sweep is writing"):
        Log(tmp_path)
    log.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "killed before its plan was written"),
        (b"not json\n", "log.jsonl:1: not a log line"),
        (b'{"crc":1,"schema":1,"kind":"header","body":{}}\n', "checksum differs"),
        (b'{"crc":%d,%s\n' % (zlib.crc32(LATER), LATER), "schema 99, this version reads 2"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / LOG_NAME).write_bytes(content)
    with pytest.raises(StoreError, match=says):
        read_run(tmp_path)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run here"):
        read_run(tmp_path)
