"""Hydra launchers: the one that a command line names, and running jobs with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ktbench.config.lists import key_of
from ktbench.config.words import quoted
from ktbench.resources import install_command
from ktbench.spec.errors import RequestError, instead

_LAUNCHER, _KEYS, _JOBS = "hydra/launcher", "hydra.launcher", "spread.jobs"
_JOB = "ktbench_job"  # the name of a job's configuration
# Each launcher with the extra of ours that installs it, and the module that it needs.
_EXTRAS = {
    "joblib": ("joblib", "joblib"),
    "submitit_local": ("submitit", "submitit"),
    "submitit_slurm": ("submitit", "submitit"),
    "ray": ("ray", "ray"),
}
LAUNCHERS = tuple(_EXTRAS)

Task = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A launcher with the overrides of its keys, and into how many shards a sweep is cut at most (None: by points)."""

    name: str
    words: tuple[str, ...]
    jobs: int | None

    def with_default(self, key: str, value: object) -> Launch:
        """The launch with a value for a key of the launcher that the command line does not set."""
        if any(key_of(word) == f"{_KEYS}.{key}" for word in self.words):
            return self
        return Launch(name=self.name, words=(f"{_KEYS}.{key}={value}", *self.words), jobs=self.jobs)

    def value(self, key: str) -> Any:
        """The value of a key of the launcher. Raises RequestError in one line for unknown keys."""
        with _composed(self, Path()) as config:
            return OmegaConf.select(config, f"{_KEYS}.{key}")


def split_launcher(overrides: Sequence[str]) -> tuple[Launch | None, list[str]]:
    """The launcher that overrides name, if any, and the other overrides.

    Raises RequestError for a launcher that is unknown or not installed, and for its keys where none is named.
    """
    rest = [word for word in overrides if not is_launching(word)]
    named = [word.partition("=")[2] for word in overrides if key_of(word) == _LAUNCHER]
    words = tuple(word for word in overrides if key_of(word).startswith(f"{_KEYS}."))
    jobs = [word for word in overrides if key_of(word) == _JOBS]
    if not named:
        if left := [*words, *jobs]:
            raise RequestError(f"{left[0]}: name a launcher with {_LAUNCHER}=, allowed are {', '.join(LAUNCHERS)}")
        return None, rest
    _require_installed(named[-1])
    return Launch(name=named[-1], words=words, jobs=_count(jobs[-1]) if jobs else None), rest


def is_launching(word: str) -> bool:
    """Whether an override names a launcher or sets one of its keys."""
    key = key_of(word)
    return key in (_LAUNCHER, _JOBS) or key.startswith(f"{_KEYS}.")


def _count(word: str) -> int:
    value = word.partition("=")[2]
    with suppress(ValueError):
        if int(value) >= 1:
            return int(value)
    raise RequestError(f"{word}: must be a whole number from 1 up")


def _require_installed(name: str) -> None:
    if name not in _EXTRAS:
        raise RequestError(f"{_LAUNCHER}={name}: unknown{instead(name, LAUNCHERS)}")
    extra, module = _EXTRAS[name]
    if not is_installed(name):
        raise RequestError(
            f"{_LAUNCHER}={name}: hydra-{module}-launcher and {module} are not both installed: {install_command(extra)}"
        )


def is_installed(name: str) -> bool:
    """Whether a launcher and the library that it uses are installed."""
    module = _EXTRAS[name][1]
    try:
        return all(find_spec(one) is not None for one in (module, f"hydra_plugins.hydra_{module}_launcher"))
    except ModuleNotFoundError:  # Hydra has no plugins here
        return False


def launch_jobs(launch: Launch, folder: Path, task: Task, jobs: Sequence[str]) -> list[str]:
    """Run `task` once for each of `jobs` with the launcher; their results in order.

    `task` is imported by its name where it runs, and gets one of the jobs as `shard`. The launcher keeps its files in
    `folder`. Raises RequestError for unknown keys, and whatever the launcher raises where a job is lost.
    """
    if launch.name == "ray":
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # or Ray sends usage reports
    with _composed(launch, folder) as config, logging_restored():
        nothing: Any = Callback()  # the documented interface, whose events do nothing
        context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=nothing)
        launcher = Plugins.instance().instantiate_launcher(context, task, config)
        returned = launcher.launch([[f"shard={quoted(job)}"] for job in jobs], initial_job_idx=0)
    return [str(one.return_value) for one in returned]


@contextmanager
def logging_restored() -> Iterator[None]:
    """Inside, Hydra sets up logging as it likes; it may disable every logger that is there."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    loggers = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    enabled = [logger for logger in loggers if not logger.disabled]
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for logger in enabled:
            logger.disabled = False


@contextmanager
def _composed(launch: Launch, folder: Path) -> Iterator[DictConfig]:
    """Hydra, initialised, and its configuration for jobs. Raises RequestError in one line for an unknown key."""
    ConfigStore.instance().store(name=_JOB, node={"shard": ""})
    words = [
        f"{_LAUNCHER}={launch.name}",
        f"hydra.sweep.dir={quoted(str(folder.resolve()))}",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]
    with initialize(version_base="1.3", config_path=None, job_name="ktbench"):
        try:
            config = hydra_compose(_JOB, [*words, *launch.words], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            plain = hydra_compose(_JOB, words, return_hydra_config=True)
            raise RequestError(_one_line(launch, plain, error)) from None
        yield config


def _one_line(launch: Launch, plain: DictConfig, error: Exception) -> str:
    """The override with an unknown key of the launcher, whose `plain` configuration has all keys."""
    known = [str(key) for key in plain.hydra.launcher if key != "_target_"]
    for word in launch.words:
        key = key_of(word).removeprefix(f"{_KEYS}.").partition(".")[0]
        if key not in known:
            return f"{word}: {_LAUNCHER}={launch.name} has no such key{instead(key, sorted(known))}"
    return f"{_LAUNCHER}={launch.name}: {' '.join(str(error).split())}"
