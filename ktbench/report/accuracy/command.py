"""The command that asks one cell the same questions again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ktbench.results.command import command_of
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.suite import SuiteSpec

# What a suite was fitted with is taken over from the command that planned the run.
_OF_A_SUITE = ("tasks", "limit", "data_dir", "confirm_unsafe")
_OF_TIMED_STEPS = ("workload", "measure")


def eval_command(spec: RunSpec, suite: SuiteSpec, planned_with: Sequence[str]) -> str:
    """`python -m ktbench eval +suite=NAME ...`. What was timed as well is left out: `run` times it again."""
    asked = [word for word in planned_with if _key(word) in _OF_A_SUITE or _key(word).startswith("suite.")]
    python, module, name, _, *words = shlex.split(command_of(spec, planned_with))
    kept = [word for word in words if _key(word).partition(".")[0] not in _OF_TIMED_STEPS]
    return shlex.join([python, module, name, "eval", f"+suite={suite.name}", *asked, *kept])


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
