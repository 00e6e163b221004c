"""The command line: one file per verb; invalid requests end in one line and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from types import ModuleType

from ktbench.cli.streams import ending_signals, exit_code_of, plain_output, printing
from ktbench.spec.errors import (
    BAD_REQUEST,
    FAILED,
    INTERRUPTED,
    RequestError,
    bounded,
    error_text,
    instead,
    is_utf8,
    one_line,
)

# Each verb, a module of this package with a function `run`, and what it does. Listing them imports none.
VERBS = {
    "doctor": "what this machine supports; each feature and peer: available, or why not",
    "probe": "measure this machine's read bandwidth and arithmetic peaks; saved as its description (machine=local)",
    "plan": "the cells of a sweep, their time and memory, and why others cannot run; nothing is loaded",
    "run": "measure one cell, or simulate it (machine=NAME)",
    "sweep": "measure or simulate an ablation (+ablation=NAME), then write tables and figures",
    "merge": "one run of the shards that `sweep shard=I/N run_name=NAME` has measured wherever: NAME",
    "eval": "accuracy of the same cells on a suite (+suite=NAME), paired with the unmodified model",
    "serve": "an OpenAI-compatible API of one cell's engine (model.path=FOLDER or model=nano)",
    "chat": "a conversation with one cell's engine in the terminal",
    "trace": "one untimed step of a cell: what overlapped, as a picture and a Chrome/Perfetto trace",
    "record": "which experts the routers choose; saved as an activation profile",
    "export": "a slice or a checkpoint as a GGUF file for llama.cpp",
    "report": "tables and figures of a run again, from its log: RUN [md|csv|json|tex|figure|html|kit|artifact ...]",
    "compare": "two runs or commits cell by cell: A B [tolerance=0.03] [different_machines=true]",
    "advise": "the best settings of a model on a machine (cpu= ram= gpu= model=), its speed, and what to upgrade",
    "validate": "judge the simulator on published numbers, after fitting it (fit=true), or on a run (run=RUN)",
    "list": "what can be named: ablations, models, machines, workloads, suites, systems, features, precisions",
    "completion": "a script that completes verbs, keys and values in bash, zsh or fish",
}
_MODULES = {"list": "catalogue"}  # a module of the name would stand for the built-in type here
_QUIET, _JSON, _VERBOSE = "--quiet", "--json", "--verbose"
COMPOSING = ("plan", "run", "sweep", "eval", "serve", "chat", "trace", "record", "export")  # and take Hydra's flags
_WITH_JSON = ("run", "sweep", "eval", "report", "list")
_WITH_ROWS = ("run", "sweep", "eval")
UNREAD = 141  # the exit code that shells report for SIGPIPE
EXIT_CODES = {
    0: "done",
    BAD_REQUEST: "the request was wrong, nothing was loaded",
    3: "`compare` found something slower",
    FAILED: "a cell failed, `compare` could not judge one, or what was asked for could not be written",
    INTERRUPTED: "interrupted, what was measured is kept",
    128 + signal.SIGHUP: "the terminal was closed, what was measured is kept",
    128 + signal.SIGTERM: "asked to end, what was measured is kept",
    UNREAD: "the reader of the output closed it early",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code, one of `EXIT_CODES`."""
    words = list(sys.argv[1:] if argv is None else argv)
    with plain_output(), ending_signals():
        return _flushed(_exit_code(words))


def _exit_code(words: Sequence[str]) -> int:
    try:
        return _run(words)
    except RequestError as error:
        _complain(str(error))
        return BAD_REQUEST
    except KeyboardInterrupt as error:
        return exit_code_of(error)
    except OSError as error:
        _discard_output()
        return _write_failed(error)


def _flushed(code: int) -> int:
    """The exit code once the output is flushed. A reader that closes the pipe early does not change it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        return code if isinstance(error, BrokenPipeError) else _write_failed(error)
    return code


def _write_failed(error: OSError) -> int:
    """The exit code where a file or a pipe cannot be written, which one line explains."""
    if isinstance(error, BrokenPipeError):
        return UNREAD
    _complain(error_text(error))
    return FAILED


def _complain(why: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        print(f"ktbench: {one_line(bounded(why))}", file=sys.stderr)


def _discard_output() -> None:
    """Redirect output that cannot be written to /dev/null, or Python would try to flush it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: Sequence[str]) -> int:
    if unreadable := [word for word in words if not is_utf8(word)]:
        raise RequestError(f"{unreadable[0]!r}: is not UTF-8 text, which no log can hold; rename what it names")
    if words[:1] == ["help"] and len(words) == 2:
        return _run_verb(words[1], ["--help"])
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print("\n".join(import_module("ktbench.cli.doctor").version_lines()))
        return 0
    return _run_verb(words[0], words[1:])


def _run_verb(verb: str, overrides: Sequence[str]) -> int:
    if verb not in VERBS:
        raise RequestError(f"{verb}: unknown verb{instead(verb, VERBS, 'ktbench --help', 0.6)}")
    offers = verb == "completion" and overrides[:1] == ["offer"]  # the words after it are those of another command
    if not offers and {"-h", "--help"} & set(overrides):
        print(import_module("ktbench.cli.help").help_text(verb, VERBS[verb]))
        return 0
    flags = {word for word in overrides if word in (_QUIET, _JSON, _VERBOSE)} if not offers else set()
    if _JSON in flags and verb not in _WITH_JSON:
        raise RequestError(f"{verb} {_JSON}: has no JSON; allowed for {', '.join(_WITH_JSON)}")
    if _VERBOSE in flags and verb not in _WITH_ROWS:
        raise RequestError(f"{verb} {_VERBOSE}: prints no rows; allowed for {', '.join(_WITH_ROWS)}")
    shown = printing(as_json=_JSON in flags, verbose=_VERBOSE in flags)
    with _quiet() if _QUIET in flags else nullcontext(), shown:
        words = [word for word in overrides if word not in flags]
        if verb in COMPOSING and any(word.startswith("-") for word in words):
            return int(import_module("ktbench.cli.hydra").run(verb, words))
        return int(module_of(verb).run(words))


def module_of(verb: str) -> ModuleType:
    """The module that carries out a verb with its function `run`."""
    return import_module(f"ktbench.cli.{_MODULES.get(verb, verb)}")


def _quiet() -> AbstractContextManager[None]:
    from ktbench.run.progress import quiet_progress

    return quiet_progress()


def usage() -> str:
    """The help text: one line per verb."""
    lines = "\n".join(f"  {verb:<12}{summary}" for verb, summary in VERBS.items())
    codes = "\n".join(f"  {code} {meaning}" for code, meaning in EXIT_CODES.items())
    return (
        f"usage: ktbench VERB [KEY=VALUE ...]   (or python -m ktbench)\n\n{lines}\n\n"
        "ktbench VERB --help (or help VERB): its keys, with defaults, values and examples\n"
        f"--quiet: no progress; --json: JSON lines ({', '.join(_WITH_JSON)})\n"
        f"--verbose: below each row, what shows that it did what was asked ({', '.join(_WITH_ROWS)})\n"
        f"start with: ktbench sweep +ablation=decode\n\nexit codes:\n{codes}"
    )


def exit_codes() -> str:
    """Every exit code and what it means, in one line."""
    return "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
