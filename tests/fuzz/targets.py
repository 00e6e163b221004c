"""What is fuzzed: for each target its inputs, what they are carried out as, and the files that they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import calls, checkpoints, configs, logs, overrides, traces, yamls


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """`inputs` are plain content that JSON holds; `carry_out` gives an exit code, in a process of its own.

    `prepare` makes files once, in a folder that stays. One that `builds` networks needs PyTorch and Transformers.
    """

    inputs: Callable[[], st.SearchStrategy[Any]]
    carry_out: Callable[[Any], int]
    prepare: Callable[[Path], None] = lambda folder: None
    builds: bool = False


TARGETS: Mapping[str, Target] = {
    "overrides": Target(inputs=overrides.inputs, carry_out=overrides.carry_out),
    "yaml": Target(inputs=yamls.inputs, carry_out=yamls.carry_out),
    "configs": Target(inputs=configs.inputs, carry_out=configs.carry_out, builds=True),
    "safetensors": Target(
        inputs=checkpoints.folders, carry_out=checkpoints.carry_out, prepare=checkpoints.prepare_folders, builds=True
    ),
    "gguf": Target(
        inputs=checkpoints.files, carry_out=checkpoints.carry_out, prepare=checkpoints.prepare_files, builds=True
    ),
    "traces": Target(inputs=traces.inputs, carry_out=traces.carry_out),
    "logs": Target(inputs=logs.inputs, carry_out=logs.carry_out, prepare=logs.prepare),
    "calls": Target(inputs=calls.inputs, carry_out=calls.carry_out),
}
