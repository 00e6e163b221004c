"""The configuration as an application of Hydra shows it, and the jobs of a multirun."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import product
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ktbench.config.compose import composed_yaml, in_one_line, normal, prepared
from ktbench.config.launcher import is_launching, logging_restored
from ktbench.config.lists import key_of, parsed, sweep_words, with_letters
from ktbench.config.machine import ReadLocal, no_local
from ktbench.config.options import SEARCHPATH, group_options, own_folders
from ktbench.config.words import quoted
from ktbench.resources import data_folder
from ktbench.spec.errors import RequestError

_MOST_JOBS = 256


def show_config(
    flags: Sequence[str], folder: str | None, overrides: Sequence[str], read_local: ReadLocal = no_local
) -> None:
    """Print what Hydra prints with its flags, such as `--cfg job`, for the configuration of overrides.

    `folder` has groups of the user's own, as `--config-dir` names it. Raises RequestError for what does not compose,
    and for lists of values, of which Hydra composes one at a time.
    """
    words = [normal(with_letters(word)) for word in overrides]
    if several := next((word for word in words if parsed(word).is_sweep_override()), None):
        raise RequestError(f"{several}: {flags[0]} shows one configuration, name one value")
    of_hydra = [word for word in words if key_of(word).startswith(("hydra.", "hydra/"))]
    ours = [word for word in words if word not in of_hydra]
    paths = [word for word in with_folder(folder, of_hydra) if key_of(word) == SEARCHPATH]
    named = [*of_hydra, *prepared([*paths, *ours], group_options([*paths, *ours]), read_local)[len(paths) :]]
    with in_one_line([*paths, *named]):
        _run_hydra([*flags, *([f"--config-dir={folder}"] if folder else []), *named])


def _run_hydra(words: Sequence[str]) -> None:
    """Hydra's own command line. Raises RequestError where it ends with an error."""

    @hydra.main(version_base="1.3", config_path=str(data_folder("conf").resolve()), config_name="config")
    def ktbench(config: DictConfig) -> None:
        """Nothing is run: the flags print."""

    said = io.StringIO()
    with _argv(["ktbench", *words]), logging_restored(), redirect_stderr(said):
        try:
            ktbench()
        except SystemExit as ended:
            if ended.code:
                raise HydraException(said.getvalue().partition("\n\nSet the environment")[0]) from None


@contextmanager
def _argv(words: Sequence[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, [*words]
    try:
        yield
    finally:
        sys.argv = before


def job_files(overrides: Sequence[str], read_local: ReadLocal = no_local) -> dict[str, str]:
    """Text by name of the files that Hydra keeps of a job in the folder `.hydra`."""
    words = [word for word in overrides if not is_launching(word)]
    return {"config.yaml": composed_yaml(words, read_local), "overrides.yaml": OmegaConf.to_yaml([*overrides])}


def jobs_of(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a multirun, in the order in which Hydra's own sweeper runs them.

    Lists are `A,B`, `choice(A,B)`, `range(START,STOP,STEP)` and, for options of groups, `glob(PATTERN)`. Raises
    RequestError for another list, such as an interval, and for more jobs than anyone starts on purpose.
    """
    groups, values = group_options(overrides), dict[str, list[str]]()
    for word in map(with_letters, overrides):
        override = parsed(word)
        values[override.get_key_element()] = sweep_words(override, groups) if override.is_sweep_override() else [word]
    count = 1
    for words in values.values():
        count *= len(words)
    if not 1 <= count <= _MOST_JOBS:
        many = f"more than {_MOST_JOBS}" if count else "no"
        raise RequestError(f"--multirun: makes {many} jobs, allowed are 1 to {_MOST_JOBS}")
    return [[*job] for job in product(*values.values())]


def with_folder(folder: str | None, overrides: Sequence[str]) -> list[str]:
    """The overrides with the folder of `--config-dir` in `hydra.searchpath`, before those that it has."""
    if folder is None:
        return [*overrides]
    if not Path(folder).is_dir():
        raise RequestError(f"--config-dir={folder}: is no folder; its folders model, machine, … hold the options")
    named = [word for word in overrides if key_of(word) == SEARCHPATH]
    listed = ",".join(quoted(str(one)) for one in (folder, *own_folders(named)))
    return [f"{SEARCHPATH}=[{listed}]", *(word for word in overrides if word not in named)]
