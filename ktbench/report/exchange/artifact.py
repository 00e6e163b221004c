"""An archive of a run to upload beside a paper: its log, what it was measured with, and a script that does it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from ktbench.files import write_whole
from ktbench.report.documents import Document
from ktbench.report.template import render
from ktbench.resources import is_file, read_text
from ktbench.results import Run
from ktbench.results.command import shell_line
from ktbench.results.log import LOG_NAME, PLAN_NAME
from ktbench.spec.errors import RequestError, refusing
from ktbench.spec.wire import digest, to_plain

ARTIFACT = "artifact"
_AGAIN = "again"  # what the script calls the run that repeats this one
_INPUTS = "inputs"
_MOST_BYTES = 16 << 20  # of a file that goes into the archive
_SCRIPT = "run.sh"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A file that the run was planned with, by the path that its command names; `why` it is not in the archive."""

    path: str
    size: int
    sha256: str
    why: str = ""


def write_artifact(path: Path, run: Run, documents: Sequence[Document], report: Sequence[Path]) -> Path:
    """Write the archive, with the files of the `report`; the same run and files give the same bytes. Returns the path.

    Raises RequestError for an operator or features whose file is not there or not the measured one, and NotWritten.
    """
    inputs = inputs_of(run)
    contents = dict(_contents(run, documents, report, inputs))
    contents["SHA256SUMS"] = "".join(
        f"{_sha256(content)}  {name}\n" for name, content in sorted(contents.items())
    ).encode()
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = ZipInfo(f"{run.folder.name}/{name}")  # of 1980, whenever it is written
            entry.external_attr = (0o100755 if name == _SCRIPT else 0o100644) << 16
            archive.writestr(entry, content, ZIP_DEFLATED)
    return write_whole(path, packed.getvalue())


def inputs_of(run: Run) -> tuple[Input, ...]:
    """The files that the command and the cells of a run name, and that are there.

    A log may come from others and name any file of this machine: only what lies below the working directory goes into
    an archive. Raises RequestError for an operator or features whose file has changed since, or is gone.
    """
    words = [word.partition("=")[2] for word in run.header.command]
    named = [value.strip("'\"[]") for word in words for value in (word, *word.split(","))]
    for cell in run.header.cells:
        named += _texts(to_plain(cell.spec))
        peer, engine = cell.spec.peer, cell.spec.engine
        _require_same("peer.operator", peer.operator, peer.operator_id)
        _require_same("engine.own_file", engine.own_file if engine.own else None, engine.own_id)
    # An array of a trace is FILE:ARRAY.
    files = {path for name in named for path in (name, name.rpartition(":")[0]) if path and is_file(path)}
    return tuple(_input(path) for path in sorted(files))


def _texts(content: Any) -> Iterator[str]:
    """All texts in plain content."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for one in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(one)


def _require_same(key: str, file: str | None, measured: str) -> None:
    if file is None:
        return
    where = f"report {ARTIFACT}: {key}={file}"
    with refusing():
        content = read_text(file, where, _MOST_BYTES)
    if digest(content) != measured:
        raise RequestError(f"{where}: has changed since the run, bring its content back")


def _input(path: str) -> Input:
    size, whole = Path(path).stat().st_size, Path(path).resolve()
    with whole.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if not whole.is_relative_to(Path.cwd()) or Path(path).is_absolute() or ".." in Path(path).parts:
        return Input(path=path, size=size, sha256=sha256, why="it lies outside the folder that ktbench runs in")
    if size > _MOST_BYTES:
        return Input(path=path, size=size, sha256=sha256, why=f"it is larger than {_MOST_BYTES >> 20} MiB")
    return Input(path=path, size=size, sha256=sha256)


def _contents(
    run: Run, documents: Sequence[Document], report: Sequence[Path], inputs: Sequence[Input]
) -> Iterator[tuple[str, bytes]]:
    """Every file of the archive by its name, but for their checksums."""
    changes = sorted(run.folder.glob("changes-*.diff"))
    files = (run.folder / LOG_NAME, run.folder / PLAN_NAME, *changes)
    own = {file.name: file for file in files if file.is_file() and not file.is_symlink()}  # a folder may be others'
    for name, file in own.items():
        yield name, file.read_bytes()
    for one in inputs:
        if not one.why:
            yield f"{_INPUTS}/{one.path}", Path(one.path).read_bytes()
    for file in report:
        yield f"report/{file.relative_to(run.folder / 'report').as_posix()}", file.read_bytes()
    facts = [{"env_id": one.env_id, "code_id": one.code_id, **one.facts} for one in run.environments]
    yield "machine.json", (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode()
    values = _values(run, documents, inputs, [file.name for file in changes if file.name in own])
    yield "README.md", render("artifact.md.j2", **values).encode()
    yield _SCRIPT, render("artifact.sh.j2", **values).encode()


def _values(
    run: Run, documents: Sequence[Document], inputs: Sequence[Input], changes: Sequence[str]
) -> Mapping[str, object]:
    """What the texts say of a run."""
    facts = run.environments[0].facts if run.environments else {}
    words = [word for word in run.header.command if not word.startswith(("run_name=", "resume="))]
    commit = str(facts.get("commit") or "")
    minutes = sum(record.took_s for record in run.records) / 60
    return {
        "run": run.header,
        "titles": [one.table.title for one in documents],
        "conditions": [*dict.fromkeys(line for one in documents for line in one.table.conditions)],
        "commit": commit,
        "checkout": shell_line([commit]),
        "is_changed": bool(facts.get("dirty")),
        "changes": [(name, shell_line([name])) for name in changes],
        "versions": {"python": facts.get("python", "?"), **facts.get("versions", {})},
        "inputs": inputs,
        "minutes": minutes,
        "command": shell_line([*words, f"run_name={_AGAIN}"]),
        "script": _SCRIPT,
        "again": _AGAIN,
        "inputs_folder": _INPUTS,
        "log": LOG_NAME,
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
