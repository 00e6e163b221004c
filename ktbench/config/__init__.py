"""From Hydra overrides to frozen specs; the only room that imports Hydra."""

from ktbench.config.compose import Composed, compose
from ktbench.config.freeze import ModelFiles, Request, RequestPart, config_file, freeze
from ktbench.config.launcher import LAUNCHERS, Launch, is_installed, is_launching, launch_jobs, split_launcher
from ktbench.config.operator import with_operator, with_own_features
from ktbench.config.options import ablation_names, is_file, suite_names

__all__ = [
    "LAUNCHERS",
    "Composed",
    "Launch",
    "ModelFiles",
    "Request",
    "RequestPart",
    "ablation_names",
    "compose",
    "config_file",
    "freeze",
    "is_file",
    "is_installed",
    "is_launching",
    "launch_jobs",
    "split_launcher",
    "suite_names",
    "with_operator",
    "with_own_features",
]
