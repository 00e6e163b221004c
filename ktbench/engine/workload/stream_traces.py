"""Public traces of requests to language models: arrivals, lengths, and which prefixes prompts share.

Azure LLM inference traces 2023 and 2024 (TIMESTAMP, ContextTokens, GeneratedTokens; Patel et al., Splitwise, ISCA
2024), BurstGPT (Timestamp, Request tokens, Response tokens; Wang et al., 2024), Mooncake (timestamp in ms,
input_length, output_length, hash_ids of blocks of 512 tokens; Qin et al., FAST 2025).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from ktbench.resources import is_file

_SETTING = "workload.stream.trace"
_MOST_TOKENS = 1 << 24
_MOST_S = 1e10
_MOST_HASH = 1 << 62
_MOST_CHARACTERS = 1 << 22  # of a line


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRequest:
    """One line of a trace; `blocks` are the hashes of the blocks of its prompt, where the trace has them."""

    arrival_s: float
    prompt: int
    answer: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """How a trace names its columns, and how it writes times."""

    time: str
    prompt: str
    answer: str
    seconds: Callable[[Any], float]
    blocks: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have to be there."""
        return (self.time, self.prompt, self.answer)


def _seconds(value: Any) -> float:
    return float(value)


def _milliseconds(value: Any) -> float:
    return float(value) / 1000


def _date(value: Any) -> float:
    """`2023-11-16 18:15:46.6805900`: fractions of up to seven digits, of which six count."""
    text = str(value).strip()
    date, _, fraction = text.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    zone = fraction[len(digits) :]
    time = datetime.fromisoformat(f"{date}{'.' + digits[:6].ljust(6, '0') if digits else ''}{zone}")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


_KINDS = (
    _Columns(time="TIMESTAMP", prompt="ContextTokens", answer="GeneratedTokens", seconds=_date),
    _Columns(time="Timestamp", prompt="Request tokens", answer="Response tokens", seconds=_seconds),
    _Columns(time="timestamp", prompt="input_length", answer="output_length", seconds=_milliseconds, blocks="hash_ids"),
)


def read_stream_trace(file: str, requests: int) -> tuple[TraceRequest, ...]:
    """The first `requests` of a trace whose answers have tokens, CSV or JSON lines (`.jsonl`).

    Raises ValueError, which names the line, where there is no such file, its columns are those of no trace that is
    known, a value is none, arrivals go back, and where it has too few.
    """
    if not is_file(file):
        raise ValueError(f"{_SETTING}={file}: no such file")
    try:
        found = tuple(islice(_requests(Path(file)), requests))
    except (OSError, UnicodeDecodeError, csv.Error, RecursionError) as error:
        raise ValueError(f"{_SETTING}={file}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    for number, (before, after) in enumerate(pairwise(found), start=2):
        if after.arrival_s < before.arrival_s:
            raise ValueError(f"{_SETTING}={file}: request {number} arrives before request {number - 1}")
    if len(found) < requests:
        raise ValueError(
            f"{_SETTING}={file}: has {len(found)} requests with an answer, workload.stream.requests={requests}"
        )
    return found


def _requests(path: Path) -> Iterator[TraceRequest]:
    """Requests that failed have answers of no tokens: they are left out."""
    columns: _Columns | None = None
    for number, line in _lines(path):
        columns = columns or _columns_of(path, line)
        request = _request(f"{_SETTING}={path}: line {number}", columns, line)
        if request.answer:
            yield request


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        if path.suffix.lower() in (".jsonl", ".json"):
            yield from _json_lines(path, stream)
            return
        reader = csv.DictReader(stream)
        for row in reader:
            yield reader.line_num, row


def _json_lines(path: Path, stream: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    while text := stream.readline(_MOST_CHARACTERS):
        number += 1
        if not text.strip():
            continue
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{_SETTING}={path}: line {number} is no JSON: {str(error)[:100]}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{_SETTING}={path}: line {number} is no object, one of each request is needed")
        yield number, content


def _columns_of(path: Path, line: Mapping[str, Any]) -> _Columns:
    for columns in _KINDS:
        if all(name in line for name in columns.names):
            return columns
    allowed = "; ".join(", ".join(columns.names) for columns in _KINDS)
    raise ValueError(f"{_SETTING}={path}: has the columns of no known trace; allowed are {allowed}")


def _request(where: str, columns: _Columns, line: Mapping[str, Any]) -> TraceRequest:
    try:
        arrival_s = columns.seconds(line[columns.time])
        prompt, answer = (_count(line[name]) for name in (columns.prompt, columns.answer))
        blocks = tuple(_whole(one) for one in line.get(columns.blocks) or ())
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{where}: {', '.join(columns.names)} must be a time and two numbers of tokens") from None
    if not (isfinite(arrival_s) and abs(arrival_s) <= _MOST_S and 1 <= prompt <= _MOST_TOKENS >= answer):
        raise ValueError(f"{where}: a time or a number of tokens is out of range")
    return TraceRequest(arrival_s=arrival_s, prompt=prompt, answer=answer, blocks=blocks)


def _count(value: Any) -> int:
    """`1024`, `1024.0`; raises ValueError for what is no whole number."""
    number = float(value)
    if isinstance(value, bool) or number != int(number) or number < 0:
        raise ValueError
    return int(number)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_HASH:
        raise ValueError
    return value
