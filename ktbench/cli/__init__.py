"""The command line: finds the verb, and says every refusal in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from ktbench.core.errors import RequestError

VERBS = (
    "doctor", "probe", "plan", "run", "sweep", "eval", "trace", "record", "export", "report", "compare", "validate",
)  # fmt: skip
BAD_REQUEST = 2
FAILED = 4
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 2 request wrong, 3 slower, 4 a cell failed, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print("\n".join(import_module("ktbench.cli.version").lines()))
        return 0
    try:
        code = _run(words[0], words[1:])
        sys.stdout.flush()
        return code
    except RequestError as error:
        print(f"ktbench: {error}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _stopped(error)


def _stopped(error: OSError) -> int:
    """The exit code where a file or a pipe takes no more: a traceback would say no more than one line."""
    try:
        sys.stdout.flush()
    except OSError:  # or Python tries once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough
        return 0
    print(f"ktbench: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
    return FAILED


def _run(verb: str, overrides: Sequence[str]) -> int:
    if verb not in VERBS:
        close = get_close_matches(verb, VERBS, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise RequestError(f"{verb}: unknown verb{hint}; allowed are {', '.join(VERBS)}")
    module = import_module(f"ktbench.cli.{verb}")
    if {"-h", "--help"} & set(overrides):
        print(f"ktbench {verb}: {module.SUMMARY}")
        return 0
    return int(module.run(overrides))


def usage() -> str:
    """The help text: one line per verb."""
    lines = [f"  {verb:<8}{import_module(f'ktbench.cli.{verb}').SUMMARY}" for verb in VERBS]
    return "\n".join(
        [
            "usage: python -m ktbench VERB [KEY=VALUE ...]",
            "",
            *lines,
            "",
            "start with: python -m ktbench sweep +ablation=decode",
            "exit codes: 0 done; 2 the request was wrong; 3 `compare` found something slower; 4 a cell failed; "
            "130 interrupted, what was measured is kept",
        ]
    )
