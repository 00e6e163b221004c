"""The log keeps what it was given, drops half a line, names damage by line and lets one process write."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results import LOG_NAME, Log, NotKept, StoreError, read_run
from ktbench.results.find import read_origin
from ktbench.results.lines import encode
from ktbench.results.log import HOLDER_NAME, PLAN_NAME, try_lock
from ktbench.spec.record import KL, Environment, Header, Outcome, Part, Record, SampleResult, TaskResult
from tests.tiny import tiny_cell

CELL = tiny_cell()
HEADER = Header(
    run="r", title="t", ablation="a", created="", command=("c",), cells=(CELL,),
    parts=(Part(name="", title="t", baseline="base"),), measure=CELL.spec.measure, code_id="code", env_id="env",
)  # fmt: skip


LATER = b'"schema":99,"kind":"header","body":{}}'
STRANGE = b'"schema":2,"kind":"song","body":{}}'
LACKING = b'"schema":2,"kind":"environment","body":{"env_id":"env"}}'


def record(number: int, samples_s: tuple[float, ...] = (0.5,)) -> Record:
    return Record(
        cell=CELL.key, label="base", round=number, outcome=Outcome.OK, samples_s=samples_s, provenance="measured",
        code_id="code", env_id="env", worker_session="s", started="",
    )  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def no_disk() -> Iterator[None]:
    """A power cut is not tested, and a busy disk takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def filled(folder: Path, *facts: Record | Environment | SampleResult | TaskResult) -> Path:
    log = Log(folder)
    for fact in (HEADER, *facts):
        log.append(fact)
    log.close()
    return folder / LOG_NAME


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=1))
def test_every_sample_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, samples_s: list[float]) -> None:
    folder = tmp_path_factory.mktemp("run")
    filled(folder, record(0, tuple(samples_s)))
    assert read_run(folder).records[0].samples_s == tuple(samples_s)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, len(encode(record(1))) - 2))
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


def test_a_damaged_line_is_named_and_the_others_stay(tmp_path: Path) -> None:
    path = filled(tmp_path, record(0), record(1), record(2))
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":7'))
    run = read_run(tmp_path)
    assert [r.round for r in run.records] == [0, 2]
    why = "the line was changed after it was written (checksum differs)"
    assert [str(one) for one in run.damage] == [f"{path}:3: {why}"]


def test_a_damaged_plan_is_read_from_its_copy(tmp_path: Path) -> None:
    path = filled(tmp_path, record(0))
    path.write_bytes(path.read_bytes().replace(b'"title":"t"', b'"title":"u"'))
    run = read_run(tmp_path)
    assert (run.header, run.records) == (HEADER, (record(0),))
    assert [one.where for one in run.damage] == [f"{path}:1"]
    (tmp_path / PLAN_NAME).unlink()
    with pytest.raises(StoreError, match=f"{LOG_NAME}:1: .*without the plan the other lines cannot be read"):
        read_run(tmp_path)


def test_the_origin_of_a_damaged_plan_is_read_from_its_copy(tmp_path: Path) -> None:
    machine = Environment(env_id="env", code_id="code", facts={"commit": "c" * 40, "dirty": False})
    path = filled(tmp_path, machine, record(0))
    whole = read_origin(tmp_path)
    assert (whole.ablation, whole.commit) == ("a", "c" * 40)
    path.write_bytes(path.read_bytes().replace(b'"title":"t"', b'"title":"u"'))
    assert read_origin(tmp_path) == whole
    (tmp_path / PLAN_NAME).unlink()
    with pytest.raises(StoreError, match="the plan of this run is missing"):
        read_origin(tmp_path)


def test_a_newline_that_was_changed_costs_no_line(tmp_path: Path) -> None:
    path = filled(tmp_path, record(0), record(1))
    whole = read_run(tmp_path).records
    path.write_bytes(path.read_bytes().replace(b"\n", b"\x0b"))
    assert read_run(tmp_path).records == whole
    log = Log(tmp_path)
    log.append(record(2))
    log.close()
    assert read_run(tmp_path).records == (*whole, record(2))
    assert read_run(tmp_path).damage == ()


@pytest.mark.parametrize(
    ("lost", "damaged"),
    [(b'"question":"a"', b'"question":"c"'), (b'"sample":1', b'"sample":2'), (b'"kl_nats"', b'"kl_natz"')],
    ids=["of a question", "of a sample", "of a metric"],
)
def test_a_task_with_a_lost_answer_has_not_ended(tmp_path: Path, lost: bytes, damaged: bytes) -> None:
    answers = (
        *(SampleResult(cell=CELL.key, task="sort", question=name, value=1.0) for name in "ab"),
        SampleResult(cell=CELL.key, task="sort", question="b", value=1.0, sample=1),
        SampleResult(cell=CELL.key, task="sort", question="b", value=1.0, metric=KL),
    )
    ended = TaskResult(
        cell=CELL.key, label="base", task="sort", outcome=Outcome.OK, provenance="measured", code_id="code",
        env_id="env", started="", questions=2, answers=4,
    )  # fmt: skip
    path = filled(tmp_path, *answers, ended)
    assert read_run(tmp_path).task_results == (ended,)
    path.write_bytes(path.read_bytes().replace(lost, damaged))
    assert read_run(tmp_path).task_results == ()


def test_two_writers_are_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(
        StoreError, match=rf"another sweep \(process {os.getpid()} on .+\) is writing to this run; wait"
    ):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()
    assert [file.name for file in tmp_path.iterdir()] == [LOG_NAME]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_no_other_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    why = f"{LOG_NAME}: {os.strerror(number)}: this file system gives no locks; put runs/ on one that does"
    with pytest.raises(StoreError, match=why):
        Log(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / LOG_NAME).touch()
    with pytest.raises(StoreError, match=why):
        Log(tmp_path)
    with (tmp_path / LOG_NAME).open("rb") as file, pytest.raises(StoreError, match=why):
        try_lock(file, shared=True)


def test_readers_of_a_lock_keep_writers_away_and_not_each_other(tmp_path: Path) -> None:
    (tmp_path / LOG_NAME).touch()
    with (tmp_path / LOG_NAME).open("rb") as one, (tmp_path / LOG_NAME).open("rb") as other:
        assert try_lock(one, shared=True) and try_lock(other, shared=True)
        with pytest.raises(StoreError, match="another sweep is writing to this run"):
            Log(tmp_path)
    log = Log(tmp_path)
    with (tmp_path / LOG_NAME).open("rb") as one:
        assert not try_lock(one, shared=True)
    log.close()


def test_a_disk_that_became_read_only_keeps_its_message_and_frees_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, record(0))
    log = Log(tmp_path)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(NotKept, match="Read-only file system: this is not kept"):
        try:
            log.append(record(1))
        finally:
            log.close()
    monkeypatch.undo()
    Log(tmp_path).close()


def test_a_run_whose_first_write_fails_leaves_nothing_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "run", new=True)
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.write(-1, b"x"))
    with pytest.raises(NotKept) as raised:
        log.append(HEADER)
    monkeypatch.undo()
    assert "resume" not in str(raised.value) and str(tmp_path / "run") in str(raised.value)
    assert not (tmp_path / "run").exists()
    log.close()
    filled(tmp_path / "run", record(0))  # the same name is free


def test_a_disk_that_takes_nothing_ends_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSIX allows write() to return 0; to repeat it for ever would hang."""
    filled(tmp_path, record(0))
    log = Log(tmp_path)
    monkeypatch.setattr(os, "write", lambda descriptor, content: 0)
    with pytest.raises(NotKept):
        log.append(record(1))
    monkeypatch.undo()
    log.close()
    assert [r.round for r in read_run(tmp_path).records] == [0]


@pytest.mark.parametrize("content", [b"notes", b"notes\n", b"my notes\nof two lines", b'{"a": 1}\n', b"\0" * 5000])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_is_no_log_stays_as_it_is(tmp_path: Path, content: bytes, linked: bool) -> None:
    (tmp_path / "run").mkdir()
    mine = tmp_path / ("mine.txt" if linked else f"run/{LOG_NAME}")
    mine.write_bytes(content)
    if linked:
        (tmp_path / "run" / LOG_NAME).symlink_to(mine)
    for new in (False, True):
        with pytest.raises(StoreError, match=r"no log of ktbench"):
            Log(tmp_path / "run", new=new)
    assert mine.read_bytes() == content
    assert [file.name for file in (tmp_path / "run").iterdir()] == [LOG_NAME]


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling link", "link to a log"])
def test_a_log_that_is_no_file_of_its_own_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    """A pipe would be waited for, /dev/zero read until memory ends, and through a link anything may be written."""
    place, elsewhere = tmp_path / "run" / LOG_NAME, tmp_path / "elsewhere"
    place.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else elsewhere)
    if kind == "link to a log":
        elsewhere.write_bytes(filled(tmp_path / "other", record(0)).read_bytes())
    before = elsewhere.read_bytes() if elsewhere.exists() else None
    for new in (False, True):
        with pytest.raises(StoreError, match=r"no log of ktbench"):
            Log(tmp_path / "run", new=new)
    assert (elsewhere.read_bytes() if elsewhere.exists() else None) == before
    assert [file.name for file in place.parent.iterdir()] == [LOG_NAME]


@pytest.mark.parametrize("name", [HOLDER_NAME, f".{PLAN_NAME}.part"])
def test_what_files_of_a_run_lead_to_is_not_written(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("a key")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(victim)
    log = Log(tmp_path / "run")
    log.append(HEADER)
    with pytest.raises(StoreError, match="another sweep is writing" if name == HOLDER_NAME else "another sweep"):
        Log(tmp_path / "run")
    log.close()
    assert victim.read_text() == "a key"
    assert read_run(tmp_path / "run").header == HEADER


def test_a_note_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HOLDER_NAME)
    log = Log(tmp_path)
    with pytest.raises(StoreError, match="another sweep is writing"):
        Log(tmp_path)
    log.close()


def test_a_new_run_does_not_go_where_one_is(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(StoreError, match=f"run_name={tmp_path.name}: .*holds a run already; continue it with resume="):
        Log(tmp_path, new=True)
    (tmp_path / LOG_NAME).write_bytes(encode(HEADER)[:50])  # killed before its plan was written
    Log(tmp_path, new=True).close()


@pytest.mark.parametrize("name", ["log.jsonl", "part/of/it"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "log.jsonl").mkdir()
    (tmp_path / "part").write_text("a file")
    with pytest.raises(StoreError, match=r"a run cannot be written there \(.+\); start ktbench where you may write"):
        Log(tmp_path / name.removesuffix("log.jsonl"))


@pytest.mark.parametrize("kept_bytes", [0, 1, 100])
def test_what_a_full_disk_takes_no_part_of_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    filled(tmp_path, record(0))
    log, write = Log(tmp_path), os.write
    taken = iter([kept_bytes] if kept_bytes else [])

    def write_some(descriptor: int, content: bytes) -> int:
        for size in taken:
            return write(descriptor, content[:size])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(NotKept, match=f"No space left on device: this is not kept, .*resume={tmp_path.name}"):
        log.append(record(1))
    monkeypatch.undo()
    assert [r.round for r in read_run(tmp_path).records] == [0]
    log.append(record(2))
    log.close()
    assert [r.round for r in read_run(tmp_path).records] == [0, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "killed before its plan was written"),
        (b"not json\n", "log.jsonl:1: not a log line .*without the plan the other lines cannot be read"),
        (b'{"crc":1,"schema":1,"kind":"header","body":{}}\n', "checksum differs"),
        (b'{"crc":%d,%s\n' % (zlib.crc32(STRANGE), STRANGE), "log.jsonl:1: a line of kind 'song', this version reads"),
        (b'{"crc":%d,%s\n' % (zlib.crc32(LACKING), LACKING), "log.jsonl:1: environment .*missing required field"),
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


def test_a_sitting_that_adds_nothing_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    machine, log = Environment(env_id="env", code_id="code"), Log(tmp_path / "run")
    log.introduce(machine)
    log.close()
    assert (tmp_path / "run" / LOG_NAME).read_bytes() == b""
    log = Log(tmp_path / "run")
    log.append(HEADER)
    log.introduce(machine)
    log.append(record(1))
    log.append(record(2))
    log.close()
    assert read_run(tmp_path / "run").environments == (machine,)


def changed(folder: Path, fact: Record | Environment | SampleResult | TaskResult, **values: Any) -> Path:
    """A log with a fact that is not what its class allows, under a checksum that is right."""
    path = filled(folder, fact)
    *others, last = path.read_bytes().splitlines(keepends=True)
    content = json.loads(last)
    del content["crc"]
    content["body"] |= values
    checked = json.dumps(content, separators=(",", ":")).encode()[1:]
    path.write_bytes(b"".join([*others, b'{"crc":%d,%b\n' % (zlib.crc32(checked), checked)]))
    return path


ANSWER = SampleResult(cell=CELL.key, task="sort", question="a", value=1.0)
MACHINE = Environment(env_id="env", code_id="code", facts={"cores": 2})
ROOF = {"read_bytes_per_s": 1e9, "peak_flops": 1e12, "peak_isa": "avx2"}


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        (record(0), {"samples_s": [0.0]}),
        (record(0), {"samples_s": [-1.0]}),
        (record(0), {"samples_s": [1e308]}),
        (record(0), {"samples_s": [1e-320]}),
        (record(0), {"samples_s": []}),
        (record(0), {"round": -1}),
        (record(0), {"took_s": -1.0}),
        (record(0), {"error": -1.0}),
        (record(0), {"error": 1e300}),
        (record(0), {"own_step_s": -1.0}),
        (record(0), {"started": "yesterday"}),
        (record(0), {"roofs": [ROOF | {"read_bytes_per_s": 0.0}]}),
        (record(0), {"roofs": [ROOF | {"peak_flops": 0.0}]}),
        (record(0), {"roofs": [ROOF | {"ping_pong_ns": -5.0}]}),
        (record(0), {"work": {"weight_bytes": -1, "flops": 1, "tokens": 1}}),
        (record(0), {"work": {"weight_bytes": 10**300, "flops": 1, "tokens": 1}}),
        (record(0), {"roles": {"host_busy_s": -1.0, "device_wait_s": 0.0, "total_s": 1.0}}),
        (record(0), {"conduct": {"disturbance": {"seconds": -1.0}}}),
        (record(0), {"cell": "another"}),
        (ANSWER, {"value": -1.0}),
        (ANSWER, {"value": 1e300}),
        (ANSWER, {"weight": -1.0}),
        (ANSWER, {"cell": "another"}),
        (MACHINE, {"facts": {"cores": "many"}}),
        (MACHINE, {"facts": {"versions": ["torch"]}}),
    ],
    ids=str,
)
def test_nonsense_under_a_right_checksum_is_refused_by_name(fact: Any, values: dict[str, Any], tmp_path: Path) -> None:
    path = changed(tmp_path, fact, **values)
    with pytest.raises(StoreError) as refused:
        read_run(tmp_path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"parts": ()},
        {"parts": (Part(name="a", title="", baseline="base"),)},
        {"parts": (Part(name="", title="", baseline="base"),) * 2},
        {"cells": (CELL, CELL)},
        {"created": "yesterday"},
    ],
    ids=str,
)
def test_a_plan_that_contradicts_itself_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^Header\."):
        replace(HEADER, **values)


@pytest.mark.parametrize("name", ["../x", "a/b", ".", ".hidden", "x" * 300, "a\x1b"])
def test_a_part_is_called_what_a_file_can_be_called(name: str) -> None:
    with pytest.raises(ValueError, match=r"^Part\.name="):
        Part(name=name, title="", baseline="base")


@pytest.mark.parametrize(
    ("why", "kept"),
    [("\udcff", "\ufffd"), ("a\ud800b", "a\ufffdb"), ("\U0001f600", "\U0001f600"), ("\\ud800", "\\ud800"), ("é", "é")],
)
def test_half_a_character_is_replaced_before_it_is_written(why: str, kept: str, tmp_path: Path) -> None:
    """As in names of files that are not UTF-8: the line would not be JSON."""
    filled(tmp_path, replace(record(0), outcome=Outcome.CRASHED, samples_s=(), why=why))
    assert read_run(tmp_path).records[0].why == kept


def test_a_line_that_is_no_json_is_damaged_whatever_its_checksum(tmp_path: Path) -> None:
    path = changed(tmp_path, record(0), why="\ud800")
    run = read_run(tmp_path)
    assert run.records == ()
    assert [one.where for one in run.damage] == [f"{path}:2"]
