"""The command line: one file per verb; invalid requests end in one line and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ktbench.spec.errors import BAD_REQUEST, FAILED, INTERRUPTED, RequestError, did_you_mean, error_text

VERBS = (
    "doctor", "probe", "plan", "run", "sweep", "eval", "trace", "record", "export", "report", "compare", "validate",
)  # fmt: skip
UNREAD = 141  # as a shell says of programs that a pipe without a reader ends
EXIT_CODES = {
    0: "done",
    BAD_REQUEST: "the request was wrong, nothing was loaded",
    3: "`compare` found something slower",
    FAILED: "a cell failed",
    INTERRUPTED: "interrupted, what was measured is kept",
    UNREAD: "the output's reader left in the middle of it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code, one of `EXIT_CODES`."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
    except RequestError as error:
        print(f"ktbench: {error}", file=sys.stderr)
        code = BAD_REQUEST
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        _let_go()
        code = _stopped(error)
    return _flushed(code)


def _flushed(code: int) -> int:
    """The exit code once the output is out. A reader that has seen enough changes nothing of what the verb found."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _let_go()
        return code if isinstance(error, BrokenPipeError) else _stopped(error)
    return code


def _stopped(error: OSError) -> int:
    """The exit code where a file or a pipe takes no more: a traceback would say no more than one line."""
    if isinstance(error, BrokenPipeError):
        return UNREAD
    print(f"ktbench: {error_text(error)}", file=sys.stderr)
    return FAILED


def _let_go() -> None:
    """What output cannot be written goes nowhere, or Python would try once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print("\n".join(import_module("ktbench.cli.doctor").version_lines()))
        return 0
    return _run_verb(words[0], words[1:])


def _run_verb(verb: str, overrides: Sequence[str]) -> int:
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, cutoff=0.6)
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
            f"exit codes: {exit_codes()}",
        ]
    )


def exit_codes() -> str:
    """Every exit code and what it means, in one line."""
    return "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
