"""Verbs with flags of Hydra: the configuration printed by Hydra itself, groups of the user's own, several jobs."""

from __future__ import annotations

import shlex
from argparse import ArgumentError, ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ktbench.spec.errors import FAILED, RequestError, instead

# With a choice for each value, or the name of what is taken, or nothing for a flag without a value.
_FLAGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "--cfg": ("-c", ("job", "hydra", "all")),
    "--info": ("-i", ("all", "config", "defaults", "defaults-tree", "searchpath", "plugins")),
    "--package": ("-p", ("PACKAGE",)),
    "--config-dir": ("-cd", ("FOLDER",)),
    "--resolve": ("", ()),
    "--multirun": ("-m", ()),
    "--run": ("-r", ()),
}
_OURS = "the configuration is ktbench's own, --config-dir=FOLDER adds groups of yours"
_INSTEAD = {
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn"), _OURS),
    **dict.fromkeys(("--shell-completion", "-sc"), "`ktbench completion SHELL` prints a script"),
    "--hydra-help": "`--info` shows the configuration and where it comes from",
    "--experimental-rerun": "`sweep resume=RUN` goes on with a run, and its table has the command of each row",
}
_MANY = ("run", "sweep", "eval")  # what `--multirun` starts once for each job


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """What flags ask for: `show` are those with which Hydra prints, `folder` has groups of the user's own."""

    show: tuple[str, ...] = ()
    folder: str | None = None
    is_multirun: bool = False


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self.prog}: {message}")


def take_flags(verb: str, words: Sequence[str]) -> tuple[Flags, list[str]]:
    """The flags among the words of a verb that composes a configuration, and the other words. Raises RequestError."""
    if foreign := next((name for word in words if (name := word.partition("=")[0]) in _INSTEAD), None):
        raise RequestError(f"{verb} {foreign}: {_INSTEAD[foreign]}")
    parser = _Parser(prog=verb, add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, (short, values) in _FLAGS.items():
        names = [flag, short] if short else [flag]
        if not values:
            parser.add_argument(*names, action="store_true")
        elif len(values) == 1:
            parser.add_argument(*names, metavar=values[0])
        else:
            several = {"nargs": "?", "const": "all"} if flag == "--info" else {}
            parser.add_argument(*names, choices=values, **several)  # type: ignore[arg-type]
    try:
        given, rest = parser.parse_known_args(words)
    except ArgumentError as error:
        raise RequestError(f"{verb} {(error.argument_name or '').partition('/')[0]}: {error.message}") from None
    if unknown := next((word.partition("=")[0] for word in rest if word.startswith("-")), None):
        raise RequestError(f"{verb} {unknown}: unknown flag{instead(unknown, _FLAGS)}")
    asked = [f"--{name}" for name in ("cfg", "info", "multirun", "run") if getattr(given, name)]
    if len(asked) > 1:
        raise RequestError(f"{verb} {' '.join(asked)}: name one of them")
    if (given.resolve or given.package) and not given.cfg:
        raise RequestError(f"{verb} {'--resolve' if given.resolve else '--package'}: goes with --cfg")
    if given.multirun and verb not in _MANY:
        raise RequestError(f"{verb} --multirun: one at a time; allowed for {', '.join(_MANY)}")
    shown = [f"--{name}={value}" for name in ("cfg", "info") if (value := getattr(given, name))]
    shown += [f"--package={given.package}"] * (given.package is not None) + ["--resolve"] * given.resolve
    return Flags(show=tuple(shown), folder=given.config_dir, is_multirun=given.multirun), rest


def run(verb: str, words: Sequence[str]) -> int:
    """Carry out a verb whose words have flags of Hydra. Raises RequestError."""
    flags, rest = take_flags(verb, words)
    if flags.show:
        return _show(verb, flags, rest)
    from ktbench.cli import module_of
    from ktbench.config.app import with_folder

    rest = with_folder(flags.folder, rest)
    return _run_jobs(verb, rest) if flags.is_multirun else int(module_of(verb).run(rest))


def _show(verb: str, flags: Flags, words: Sequence[str]) -> int:
    from ktbench.config.app import show_config
    from ktbench.host.describe import read_local_machine

    own = ("output=", "shard=", "serve.", "chat.")  # keys of verbs, which are none of the configuration
    show_config(flags.show, flags.folder, [word for word in words if not word.startswith(own)], read_local_machine)
    return 0


def _run_jobs(verb: str, words: Sequence[str]) -> int:
    """Run each job of a multirun, one after the other; all are composed before the first begins.

    Exit code 4 where one did not end well, whatever its own code.
    """
    from ktbench.cli import module_of
    from ktbench.config.app import jobs_of
    from ktbench.run.progress import say, warn
    from ktbench.run.request import one_cell_request, suite_request, sweep_request

    requests: Mapping[str, Callable[[Sequence[str]], Any]] = {
        "run": partial(one_cell_request, verb),
        "sweep": sweep_request,
        "eval": suite_request,
    }
    jobs = [_named(job, number) for number, job in enumerate(jobs_of(words))]
    for job in jobs:
        requests[verb](job)
    codes = list[int]()
    for number, job in enumerate(jobs):
        say(f"job {number} of {len(jobs)}: {shlex.join(job)}")
        try:
            codes.append(module_of(verb).run(job))
        except RequestError as error:  # such as too little memory: the others may run
            warn(f"ktbench: {error}")
            codes.append(FAILED)
    return FAILED if any(codes) else 0


def _named(job: Sequence[str], number: int) -> list[str]:
    """The words of a job; each has a folder of its own."""
    if resumed := next((word for word in job if word.startswith("resume=")), None):
        raise RequestError(f"{resumed}: goes on with one run, leave out --multirun")
    return [f"{word}-{number}" if word.startswith("run_name=") else word for word in job]
