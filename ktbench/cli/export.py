"""`export`: a model as a GGUF file, for llama.cpp."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

if TYPE_CHECKING:
    from ktbench.engine.gguf.families import GgufType
    from ktbench.run.exporting import Export
    from ktbench.spec.run_spec import RunSpec

SUMMARY = "a slice or a checkpoint as a GGUF file for llama.cpp"
A_CELL_FAILED = 4


def run(overrides: Sequence[str]) -> int:
    """Write the file and print what it holds. Exit code 4 where it could not be written.

    Raises RequestError, most of them before anything loads.
    """
    from ktbench.cli.progress import say
    from ktbench.engine.gguf.export import MISSING, has_gguf
    from ktbench.run.apart import ChildFailed
    from ktbench.run.exporting import BAD_REQUEST, export_apart
    from ktbench.spec.errors import RequestError

    asked = read_export(overrides)
    if not has_gguf():
        say(f"ktbench export: {MISSING}")
        return A_CELL_FAILED
    try:
        export_apart(asked, say)
    except ChildFailed as error:
        if error.code == BAD_REQUEST:
            raise RequestError(f"export {error}") from None
        say(f"ktbench export: {error}")
        return A_CELL_FAILED
    print("\n".join(summary(asked)))
    print(f"\nwrote {asked.output}")
    return 0


def read_export(overrides: Sequence[str]) -> Export:
    """What a command line asks to be written. Raises RequestError."""
    from ktbench.cli.request import read_request
    from ktbench.engine.gguf.families import family_of
    from ktbench.run.exporting import Export
    from ktbench.spec.errors import RequestError

    words, output = _taken(overrides, "output", "one new file, such as output=model.gguf")
    words, kind = _taken(words, "type", f"one of {', '.join(_types())}")
    request = read_request(words)
    if request.is_sweep:
        raise RequestError("export: takes one model; lists and ablations are for `sweep`")
    spec = request.parts[0].spec
    try:
        family_of(spec.model.config)
    except ValueError as error:
        raise RequestError(f"export {error}") from None
    experts, dense = _asked_types(spec, kind)
    return Export(model=spec.model, experts=experts, dense=dense, output=str(_new_file(output)))


def _taken(words: Sequence[str], key: str, wanted: str) -> tuple[list[str], str | None]:
    """The words without `key=VALUE`, which is no key of a spec, and its value."""
    from ktbench.spec.errors import RequestError

    start = f"{key}="
    values = [word.removeprefix(start) for word in words if word.startswith(start)]
    if len(values) > 1 or values == [""]:
        raise RequestError(f"export {start}{f' {start}'.join(values)}: name {wanted}")
    return [word for word in words if not word.startswith(start)], values[0] if values else None


def _types() -> tuple[GgufType, ...]:
    from ktbench.engine.gguf.families import GgufType

    return get_args(GgufType)


def _asked_types(spec: RunSpec, kind: str | None) -> tuple[GgufType, GgufType]:
    """Types of the routed experts and of all other matrices."""
    from ktbench.spec.errors import RequestError
    from ktbench.spec.peers import BY_NAME

    if kind is not None:
        if found := [one for one in _types() if one == kind]:
            return found[0], found[0]
        raise RequestError(f"export type={kind}: allowed are {', '.join(_types())}")
    types = {precision: one for precision, one in BY_NAME["llama.cpp"].types.items() if one.lower() == precision}
    asked = {"precision": spec.precision, "device_precision": spec.device_precision}
    for key, precision in asked.items():
        if precision not in types:
            raise RequestError(f"export {key}={precision}: GGUF has no such type; allowed are {', '.join(types)}")
    experts, dense = (cast("GgufType", types[precision]) for precision in asked.values())
    return experts, dense


def _new_file(output: str | None) -> Path:
    from ktbench.spec.errors import RequestError

    if output is None:
        raise RequestError("export: name a new file, such as output=model.gguf")
    file = Path(output)
    if file.exists():
        raise RequestError(
            f"export output={file}: is {'a folder' if file.is_dir() else 'there already'}, name a new file"
        )
    above = next(folder for folder in file.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RequestError(f"export output={file}: nothing can be written to {above}")
    return file


def summary(asked: Export) -> Iterator[str]:
    """What was written: tensors by type, bytes, and what tells its numbers from others'."""
    from ktbench.engine.gguf.export import weights_digest
    from ktbench.engine.gguf.header import read_header

    kinds = Counter(tensor.kind for tensor in read_header(asked.output).tensors.values())
    yield f"tensors {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
    yield f"{Path(asked.output).stat().st_size:,} bytes"
    yield f"weights {weights_digest(asked.model, asked.experts, asked.dense)}"
