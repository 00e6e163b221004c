"""Logs of runs with changed lines whose checksums are right, or not; reported and compared."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ktbench.resources import data_folder
from tests.fuzz.child import ktbench, made
from tests.fuzz.words import all_changed, changes, contents

_RECORDED = {
    "decode": "granite_rapids_2_cores/decode_2026_11_22",
    "peers": "granite_rapids_2_cores/peers_decode_q8_0",
    "layer": "zen4_2_cores/deepseek_v3_layer_fp8",
}
_SIMULATED, _ANSWERED = "simulated", "answered"
_LOG = "log.jsonl"
_TEXTS = ("md", "csv", "json", "tex")
_COMMANDS = (
    *(["report", "runs/hurt", *_TEXTS],) * 6,
    ["report", "runs/hurt", "figure"],
    ["report", "runs/hurt", "html"],
    ["compare", "runs/hurt", "runs/whole"],
    ["compare", "runs/whole", "runs/hurt"],
)
# Numbers that every record has, where nonsense is worth more than anywhere else.
_KEYS = (
    *(
        "samples_s",
        "round",
        "took_s",
        "error",
        "roofs",
        "started",
        "cell",
        "label",
        "work",
        "evidence",
        "outcome",
        "why",
    ),
    *("conduct", "provenance", "env_id", "code_id", "sitting", "notes", "roles", "agreement", "own_step_s", "value"),
    *("task", "question", "metric", "weight", "cells", "parts", "measure", "facts", "command", "suite", "figure"),
)


def inputs() -> st.SearchStrategy[Any]:
    """A log, changes of some of its lines, and a command."""
    bodies = st.lists(st.tuples(st.sampled_from(_KEYS), contents()).map(list), max_size=2)
    line = st.fixed_dictionaries(
        {"at": st.integers(0, 200), "every": st.booleans(), "facts": bodies, "changes": changes(2) | st.just([])}
    )
    raw = st.fixed_dictionaries({"at": st.integers(0, 200), "bytes": st.binary(max_size=20).map(bytes.hex)})
    order = st.fixed_dictionaries({"at": st.integers(0, 200), "move": st.integers(0, 200)})
    return st.fixed_dictionaries(
        {
            "log": st.sampled_from([*_RECORDED, _SIMULATED, _ANSWERED]),
            "lines": st.lists(st.one_of(line, line, line, raw, order), min_size=1, max_size=3),
            "words": st.sampled_from(_COMMANDS),
        }
    )


def prepare(folder: Path) -> None:
    """A simulated run with published numbers, and one that answered questions."""
    import os

    from ktbench import cli
    from tests.report.accuracy_stores import FIG13, FOUR, AnswerStore

    os.chdir(folder)
    cli.main(["sweep", "+ablation=paper/fig14_decode", "run_name=simulated"])
    shutil.copytree(f"runs/{_SIMULATED}", _SIMULATED)
    store = AnswerStore(arms=FIG13[:3], suite=FOUR, questions=8)
    shutil.copytree(store.write(folder / "some").folder, _ANSWERED)


def carry_out(data: Any) -> int:
    """The command on the changed log."""
    whole = (
        data_folder("reports") / "recorded" / _RECORDED[data["log"]]
        if data["log"] in _RECORDED
        else made("logs") / data["log"]
    )
    lines = (whole / _LOG).read_bytes().splitlines(keepends=True)
    for change in data["lines"]:
        lines = _changed(lines, change)
    for name, content in (("whole", (whole / _LOG).read_bytes()), ("hurt", b"".join(lines))):
        Path("runs", name).mkdir()
        Path("runs", name, _LOG).write_bytes(content)
    return ktbench(*data["words"])


def _changed(lines: list[bytes], change: Any) -> list[bytes]:
    at = change["at"] % len(lines)
    if "bytes" in change:
        return [*lines[:at], bytes.fromhex(change["bytes"]), *lines[at + 1 :]]
    if "move" in change:
        rest = [*lines[:at], *lines[at + 1 :]]
        to = change["move"] % (len(rest) + 1)
        return [*rest[:to], lines[at], *rest[to:]]
    kind = _kind(lines[at])
    return [
        _line(one, change) if n == at or (change["every"] and _kind(one) == kind) else one
        for n, one in enumerate(lines)
    ]


def _kind(line: bytes) -> Any:
    try:
        return json.loads(line)["kind"]
    except (ValueError, TypeError, LookupError):
        return None


def _line(line: bytes, change: Any) -> bytes:
    """With its body changed and the checksum that goes with it."""
    try:
        content = json.loads(line)
        body = content["body"]
    except (ValueError, TypeError, LookupError):
        return line
    for key, value in change["facts"]:
        body = body | {key: value} if isinstance(body, dict) and key in body else body
    content["body"] = all_changed(body, change["changes"])
    content.pop("crc", None)
    checked = json.dumps(content, separators=(",", ":")).encode()[1:]
    return b'{"crc":%d,%b\n' % (zlib.crc32(checked), checked)
