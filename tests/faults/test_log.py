"""Whatever happens to a log, what it promised is there, and what is not what was written has a name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results import LOG_NAME, Log, StoreError, read_run
from ktbench.results.lines import encode
from ktbench.spec.record import Header, Outcome, Part, Record
from tests.tiny import tiny_cell

CELL = tiny_cell()
HEADER = Header(
    run="r", title="t", ablation="a", created="", command=("c",), cells=(CELL,),
    parts=(Part(name="", title="t", baseline="base"),), measure=CELL.spec.measure, code_id="code", env_id="env",
)  # fmt: skip
RECORDS = tuple(
    Record(
        cell=CELL.key, label="base", round=number, outcome=Outcome.OK, samples_s=(0.5 + number,), provenance="measured",
        code_id="code", env_id="env", worker_session="s", started="", notes=('a "crc":1, in {"crc":2,', "ü\n"),
    )
    for number in range(12)
)  # fmt: skip
LINES = tuple(map(encode, (HEADER, *RECORDS[:4])))
CONTENT = b"".join(LINES)
Lives = list[tuple[int, int]]


@pytest.fixture(autouse=True, scope="module")
def no_disk() -> Iterator[None]:
    """Processes are killed here, not machines; a busy disk takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(len(LINES[0]), len(CONTENT)))
def test_of_any_prefix_the_whole_lines_are_left(folder: Path, cut: int) -> None:
    (folder / LOG_NAME).write_bytes(CONTENT[:cut])
    kept = (CONTENT[:cut] + b"\n").count(b"}}\n") - 1
    for _ in range(2):
        run = read_run(folder)
        assert (run.records, run.damage) == (RECORDS[:kept], ())
        Log(folder).close()


@settings(deadline=None, max_examples=150)
@given(where=st.integers(0, len(CONTENT) - 1), bit=st.integers(0, 7))
def test_of_any_flipped_bit_the_line_is_named_and_no_other_lost(folder: Path, where: int, bit: int) -> None:
    flipped = CONTENT[:where] + bytes([CONTENT[where] ^ 1 << bit]) + CONTENT[where + 1 :]
    (folder / LOG_NAME).write_bytes(flipped)
    line = CONTENT[:where].count(b"\n") + 1
    if line == 1 and where != len(LINES[0]) - 1:
        with pytest.raises(StoreError, match=f"{LOG_NAME}:1: .*without the plan"):
            read_run(folder)
        return
    run = read_run(folder)
    if CONTENT[where : where + 1] == b"\n":
        assert (run.records, run.damage) == (RECORDS[:4], ())
    else:
        assert run.records == tuple(record for record in RECORDS[:4] if record.round != line - 2)
        named = [one.where for one in run.damage]
        assert named[0] == f"{folder / LOG_NAME}:{line}"
        assert len(named) == flipped.count(b"\n") - CONTENT.count(b"\n") + 1


@settings(deadline=None, max_examples=40)
@given(lives=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500)), max_size=6))
def test_writers_killed_one_after_the_other_keep_what_they_promised_once(folder: Path, lives: Lives) -> None:
    (folder / LOG_NAME).unlink(missing_ok=True)
    log = Log(folder)
    log.append(HEADER)
    log.close()
    for promised, torn in lives:
        log, left = Log(folder), [r for r in RECORDS if r not in read_run(folder).records]
        for record in left[:promised]:
            log.append(record)
        for record in left[promised : promised + 1]:
            log._file.write(encode(record)[:torn])  # all that the disk got of it
        log._file.close()
        run = read_run(folder)
        assert {r.round for r in left[:promised]} <= {r.round for r in run.records}
        assert len(run.records) == len({r.round for r in run.records}) <= len(RECORDS) - len(left) + promised + 1
    assert read_run(folder).damage == ()
