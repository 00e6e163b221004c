"""GGUF files: the request of a command line, and a subprocess that writes the file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast, get_args

import msgspec

from ktbench.engine.gguf.export import kept_file, weights_digest
from ktbench.engine.gguf.families import GgufType, family_of
from ktbench.engine.gguf.header import read_header
from ktbench.run.child import child_exit_code, run_subprocess
from ktbench.run.request import new_file, one_cell_request, take_word
from ktbench.spec.errors import BAD_REQUEST, RequestError, instead
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import ModelSpec, RunSpec

EXPORT: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.export")
_TYPES: tuple[GgufType, ...] = get_args(GgufType)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRequest:
    """The file that a child writes, and the types of routed experts and of all other matrices."""

    model: ModelSpec
    experts: GgufType
    dense: GgufType
    output: str


def ensure_file(spec: RunSpec, say: Callable[[str], None]) -> None:
    """Write the GGUF file that a peer runs for a cell, unless it exists. Raises ChildFailed."""
    file = kept_file(spec)
    if not file.path.exists():
        say(f"writing {file.path}, which is kept for later sweeps")
        request = ExportRequest(model=spec.model, experts=file.experts, dense=file.dense, output=str(file.path))
        run_subprocess(EXPORT, request, say)


def read_export(overrides: Sequence[str]) -> ExportRequest:
    """The request of a command line. Raises RequestError."""
    words, output = take_word("export", overrides, "output", "one new file, such as output=model.gguf")
    words, kind = take_word("export", words, "type", f"one of {', '.join(_TYPES)}")
    spec = one_cell_request("export", words).parts[0].spec
    try:
        family_of(spec.model.config)
    except ValueError as error:
        raise RequestError(f"export {error}") from None
    experts, dense = _types_of(spec, kind)
    if output is None:
        raise RequestError("export: name a new file, such as output=model.gguf")
    return ExportRequest(model=spec.model, experts=experts, dense=dense, output=str(new_file("export", output)))


def _types_of(spec: RunSpec, kind: str | None) -> tuple[GgufType, GgufType]:
    """Types of the routed experts and of all other matrices."""
    if kind is not None:
        if matching := [type_ for type_ in _TYPES if type_ == kind]:
            return matching[0], matching[0]
        raise RequestError(f"export type={kind}: unknown{instead(kind, _TYPES)}")
    types = {precision: type_ for precision, type_ in BY_NAME["llama.cpp"].types.items() if type_.lower() == precision}
    keys = {"precision": spec.precision, "device_precision": spec.device_precision}
    for key, precision in keys.items():
        if precision not in types:
            raise RequestError(f"export {key}={precision}: GGUF has no such type{instead(precision, types)}")
    experts, dense = (cast("GgufType", types[precision]) for precision in keys.values())
    return experts, dense


def summary(request: ExportRequest) -> Iterator[str]:
    """Summary of a written file: tensors by type, bytes, and the digest of its weights."""
    kinds = Counter(tensor.kind for tensor in read_header(request.output).tensors.values())
    yield f"tensors {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
    yield f"{Path(request.output).stat().st_size:,} bytes"
    yield f"weights {weights_digest(request.model, request.experts, request.dense)}"


def main() -> int:
    """Entry of the child: the request on standard input, progress on standard output.

    Exit code `BAD_REQUEST` for models that can never be written.
    """
    try:
        return child_exit_code(_export)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_REQUEST


def _export() -> None:
    from ktbench.engine.gguf.export import export_gguf

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ExportRequest)
    kinds = {"experts": request.experts, "dense": request.dense}
    export_gguf(request.model, Path(request.output), **kinds, say=partial(print, flush=True))


if __name__ == "__main__":
    sys.exit(main())
