"""`export`: a model as a GGUF file, for llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.engine.gguf.export import MISSING, has_gguf
from ktbench.run.child import ChildFailed, run_subprocess
from ktbench.run.export import EXPORT, read_export, summary
from ktbench.run.progress import say, warn
from ktbench.spec.errors import BAD_REQUEST, FAILED, RequestError


def run(overrides: Sequence[str]) -> int:
    """Write the file and print a summary. Exit code 4 where it could not be written.

    Raises RequestError, most of them before anything loads.
    """
    export = read_export(overrides)
    if not has_gguf():
        warn(f"ktbench export: {MISSING}")
        return FAILED
    try:
        run_subprocess(EXPORT, export, say)
    except ChildFailed as error:
        if error.code == BAD_REQUEST:
            raise RequestError(f"export {error}") from None
        warn(f"ktbench export: {error}")
        return FAILED
    print("\n".join(summary(export)))
    print(f"\nwrote {export.output}")
    return 0
