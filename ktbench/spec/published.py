"""A published number, as data with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from ktbench.spec.features import Phase
from ktbench.spec.sweep import arm_changes

# What a value measures, with its unit. Shares are of the time of a step; `% time saved` is over the same without
# deferral, `relative %` over what the number's `what` says.
Metric = Literal[
    "tokens/s", "ms", "us", "TFLOPS", "TOPS", "GB/s", "launches", "%", "% host busy", "% device busy", "% overlap",
    "% time saved", "score", "relative %", "it/s", "GB",
]  # fmt: skip
# artifact: a file of the authors; text: read in a paper or a document; digitized: read off a figure, pixel by pixel.
Confidence = Literal["artifact", "text", "digitized"]
Subject = Phase | Literal["serving", "accuracy", "machine"]

# Arms that are none of ours, and why no cell of ours can stand for them.
NOT_OURS: Mapping[str, str] = {
    "API": "a served model, of which neither engine nor weights are known",
    "HuggingFace": "a backend of LLaMA-Factory, which holds all weights on GPUs",
    "Unsloth": "a backend of LLaMA-Factory, which holds all weights on GPUs",
}
# Formats that no precision of ours is: the one of ours that has about as many bits.
STANDS_FOR: Mapping[str, str] = {"fp16": "bf16", "fp8": "int8", "q4_k_m": "q4_k"}
_REPEATS = "repeats "


def figure_of(name: str) -> str:
    """What `figure` is of the numbers that `sweep.published` names: a figure, or a CSV file whose name it is."""
    return name.rpartition("/")[2].removesuffix(".csv") if is_file(name) else name


def is_file(name: str) -> bool:
    """Whether `name` in `sweep.published` is a file and none of those that ship."""
    return name.endswith(".csv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One number of a paper, its artifact, or a project's documentation.

    `figure` is the file of `reports/published` that holds it. `arm` names what ran as arms of sweeps do (`base`,
    `+v+d`, `llama.cpp`) or is one of NOT_OURS, `machine` is a name of `conf/machine`, `model` one of `conf/model`, and
    `precision` the format of the routed experts; each is empty where the number is not about one or its source does not
    say. `tokens` is the length of a prompt in prefill, the context in decode, and the tokens that an expert gets in a
    layer; `batch` counts sequences. `settings` are further keys of a spec with their values as Hydra writes them,
    `engine.placement.policy=uniform engine.placement.ratio=0.1`. `what` says in words what no other field does: a task,
    a share, or `repeats ID` where another figure shows the same run. `metric` is what `value` measures, with its unit.
    """

    id: str
    figure: str
    arm: str
    machine: str
    model: str
    precision: str
    phase: Subject
    tokens: int | None
    batch: int
    settings: str
    what: str
    metric: Metric
    value: float
    source: str
    confidence: Confidence

    def __post_init__(self) -> None:
        for name in ("id", "source"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")
        if not isfinite(self.value):
            raise ValueError(f"value={self.value}: must be finite")
        if self.batch < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError(f"batch={self.batch}, tokens={self.tokens}: must be at least 1")
        if self.arm and self.arm not in NOT_OURS:
            arm_changes(self.arm)
        if bad := next((word for word in self.settings.split() if not all(word.partition("="))), None):
            raise ValueError(f"settings: {bad!r} is not KEY=VALUE")

    @property
    def conditions(self) -> dict[str, str]:
        """`settings` by dotted key."""
        words = (word.partition("=") for word in self.settings.split())
        return {key: value for key, _, value in words}

    @property
    def panel(self) -> str:
        """The part of the figure that it stands in, which its id begins with: `fig14a`, or the whole figure."""
        return self.id.rpartition("-")[0]

    @property
    def repeats(self) -> str | None:
        """Id of the number that this one shows once more; None for a number of its own."""
        return self.what.removeprefix(_REPEATS) if self.what.startswith(_REPEATS) else None
