"""Writes a GGUF file in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ktbench.engine.gguf.export import kept_file
from ktbench.engine.gguf.families import GgufType
from ktbench.run.apart import run_apart
from ktbench.spec.run_spec import ModelSpec, RunSpec

EXPORT: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.exporting")
BAD_REQUEST = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What a child is to write: the types of routed experts and of all other matrices, and the file."""

    model: ModelSpec
    experts: GgufType
    dense: GgufType
    output: str


def ensure_file(spec: RunSpec, say: Callable[[str], None]) -> None:
    """Have the GGUF file written that a peer runs for a cell, where it is not there yet. Raises ChildFailed."""
    file = kept_file(spec)
    if not file.path.exists():
        say(f"writing {file.path}, which is kept for later sweeps")
        export_apart(Export(model=spec.model, experts=file.experts, dense=file.dense, output=str(file.path)), say)


def export_apart(asked: Export, say: Callable[[str], None]) -> None:
    """Have a child write the file. Raises ChildFailed, with code `BAD_REQUEST` for what can never be written."""
    run_apart(EXPORT, asked, say)


def main() -> int:
    """Entry of the child: what to write on standard input, progress on standard output."""
    from ktbench.engine.gguf.export import export_gguf
    from ktbench.run.serve import die_with_parent

    die_with_parent()
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Export)
    try:
        export_gguf(
            asked.model, Path(asked.output), experts=asked.experts, dense=asked.dense, say=partial(print, flush=True)
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_REQUEST
    return 0


if __name__ == "__main__":
    sys.exit(main())
