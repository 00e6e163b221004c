"""Lines of a log: one checked JSON line for each fact. Damage is found, named and passed over."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from ktbench.spec.errors import RequestError
from ktbench.spec.published import Published
from ktbench.spec.record import Environment, Header, Record, SampleResult, TaskResult
from ktbench.spec.wire import from_wire, to_wire

SCHEMA = 2
Fact: TypeAlias = Header | Environment | Record | Published | SampleResult | TaskResult
KINDS: dict[type[Fact], str] = {
    Header: "header",
    Environment: "environment",
    Record: "record",
    Published: "published",
    SampleResult: "scored",
    TaskResult: "asked",
}
_TYPES = {name: kind for kind, name in KINDS.items()}
# Escapes in JSON: a backslash, a character beyond the first plane by its two halves, half of one.
_ESCAPES = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\ud[89a-f][0-9a-f]{2}")
_HALF, _UNKNOWN = len(r"\ud800"), r"\ufffd"
# No string of a body can hold these bytes: JSON escapes the quotation mark.
_BEGIN = b'{"crc":'


class StoreError(RequestError):
    """A log that cannot be read or written; the message names file, line and defect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A line that is not what was written, `where` by file and line. The other lines of its log are whole."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class _Checked(msgspec.Struct, frozen=True):
    """What stands behind the checksum of a line."""

    schema: int
    kind: str
    body: msgspec.Raw


def encode(fact: Fact) -> bytes:
    """One log line. The CRC-32 comes first and covers every byte after its comma, up to the newline.

    Half of a character, as in names of files that are not UTF-8, is replaced: no JSON has it.
    """
    body = json.dumps(to_wire(fact), sort_keys=True, separators=(",", ":"), allow_nan=False)
    body = _ESCAPES.sub(lambda found: _UNKNOWN if len(found[0]) == _HALF else found[0], body)
    checked = f'"schema":{SCHEMA},"kind":"{KINDS[type(fact)]}","body":{body}}}'.encode()
    return b"%b%d,%b\n" % (_BEGIN, zlib.crc32(checked), checked)


def read_lines(path: Path) -> Iterator[Fact | Damage]:
    """The fact of every whole line, and for every other one a Damage.

    Half a line at the end is dropped: its writer was killed. A CRC-32 sees every change of up to 32 bits in a row.
    Raises StoreError for a line that is whole and of another version.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            whole, where = line.endswith(b"\n"), f"{path}:{number}"
            for checked in checked_parts(line.removesuffix(b"\n")):
                if isinstance(checked, bytes):
                    yield _decode(checked, where)
                elif whole:
                    yield Damage(where=where, why=checked)


def is_log(content: bytes) -> bool:
    """Whether content is that of a log, of which any lines may be damaged: it begins as one, or holds a whole line."""
    if content.startswith(_BEGIN) or _BEGIN.startswith(content):
        return True
    return any(isinstance(part, bytes) for line in content.split(b"\n") for part in checked_parts(line))


def checked_parts(line: bytes) -> Iterator[bytes | str]:
    """What stands behind the checksum of a line, or why it is not believed.

    Where a newline was changed two lines have become one: each is read for itself.
    """
    first, *others = line.split(_BEGIN)
    if first or not others:
        yield "not a log line of ktbench"
    for part in others:
        content, _, checked = part.partition(b",")
        if content == b"%d" % zlib.crc32(checked):
            yield checked
        elif content == b"%d" % zlib.crc32(checked[:-1]):
            yield checked[:-1]
        else:
            yield "the line was changed after it was written (checksum differs)"


def _decode(checked: bytes, where: str) -> Fact | Damage:
    """Raises StoreError for what another version wrote, and for values that no fact has."""
    try:
        return _fact(checked, where)
    except (msgspec.DecodeError, RecursionError) as error:
        return Damage(where=where, why=f"not a log line of ktbench ({error})")


def _fact(checked: bytes, where: str) -> Fact:
    content = msgspec.json.decode(b"{" + checked, type=_Checked)
    if content.schema != SCHEMA:
        raise StoreError(f"{where}: schema {content.schema}, this version reads {SCHEMA}")
    kind = _TYPES.get(content.kind)
    if kind is None:
        raise StoreError(f"{where}: a line of kind {content.kind!r}, this version reads {', '.join(_TYPES)}")
    try:
        return from_wire(msgspec.json.decode(content.body), kind)
    except ValueError as error:
        raise StoreError(f"{where}: {content.kind} {error}") from None
