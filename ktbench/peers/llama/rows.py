"""Rows that llama-bench prints (`-o jsonl`), one for each test; nothing in them is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ktbench.peers.llama.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One test: the settings that it ran on, seconds of each repetition, and what the program says of itself."""

    settings: Settings
    samples_s: tuple[float, ...]
    build: str
    backends: str
    weights: str
    cache: str


def read_rows(output: str) -> tuple[Row, ...]:
    """The rows of an output, in order; a last line without an end is that of a program that was ended, and left out.

    Raises ValueError in one line for a row without samples or settings.
    """
    whole = output.splitlines()[: None if output.endswith("\n") else -1]
    return tuple(_row(line) for line in whole if line.startswith("{"))


def _row(line: str) -> Row:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ValueError(f"llama-bench printed a row that is not JSON: {error}") from None
    settings = Settings(
        threads=_count(content, "n_threads"),
        ubatch=_count(content, "n_ubatch"),
        flash=bool(_value(content, "flash_attn")),
    )
    return Row(
        settings=settings,
        samples_s=_samples_s(content),
        build=str(content.get("build_commit", "unknown")),
        backends=str(content.get("backends", "unknown")),
        weights=str(content.get("model_type", "unknown")),
        cache=f"{content.get('type_k', 'unknown')} and {content.get('type_v', 'unknown')}",
    )


def _value(content: Mapping[str, Any], key: str) -> Any:
    if key not in content:
        raise ValueError(f"llama-bench printed a row without {key}")
    return content[key]


def _count(content: Mapping[str, Any], key: str) -> int:
    value = _value(content, key)
    if type(value) is not int or value < 1:
        raise ValueError(f"llama-bench printed {key}={value!r}, expected is a whole number above 0")
    return value


def _samples_s(content: Mapping[str, Any]) -> tuple[float, ...]:
    samples = _value(content, "samples_ns")
    if not isinstance(samples, list) or not samples or not all(_is_duration(sample) for sample in samples):
        raise ValueError(f"llama-bench printed samples_ns={samples!r}, expected are numbers above 0")
    return tuple(sample / 1e9 for sample in samples)


def _is_duration(sample: object) -> bool:
    return isinstance(sample, int | float) and not isinstance(sample, bool) and sample > 0 and math.isfinite(sample)
