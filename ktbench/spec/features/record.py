"""The record of a toggle: all that the rest of the code asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from ktbench.spec.limits import Limit

# On or off, how many, or which one; `auto` leaves the number to the engine.
FeatureValue = bool | int | float | str
Phase = Literal["prefill", "decode", "layer", "serve", "train"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """Where the best engine has a feature on: in `phases`, on a `device` (None: any), on a machine that has it.

    Not on one that has a feature of `unless`, which is better.
    """

    phases: tuple[Phase, ...] = PHASES
    device: Literal["cpu", "cuda"] | None = None
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One toggle of the engine: its value, what it needs, what proves that it ran, and what it does to a cell.

    `off` is the value that leaves the engine as it is, `names` are the values that are not numbers. `needs` names
    machine capabilities (`ktbench.host.capabilities`), `requires` lists feature names of which at least one must be on
    as well, `limits` what excludes it in a cell, and `phases` are those in which it acts.

    `counter` is the engine counter that must move when the feature is on and stay still when it is off; where data
    decide whether it fires it `may_be_zero`, and a trial says so. The value is an argument of the experts' kernels by
    its name where it is a `kernel_argument`. A feature that `routes` decides which of a token's experts run when: it
    acts on decode steps, and on prompts with `engine.defer_prefill`. One that `alters_outputs` does so on purpose:
    logits are compared, and need not agree; where it `alters_experts` the outputs of single calls of experts need not
    be those of float32 arithmetic either. Cells on described machines refuse what is not `simulated`. `best` says where
    the best engine has it on, None: only where it is asked for.

    A feature from outside has a `hook`: called with the value, it gives one object for all layers of a loaded model,
    kept from trial to trial, with some of the methods `choose`, `defer` and `run` (docs/howto/feature.md). What they do
    is counted as `counter`. Recorded steps run them where they are `recordable`: made of PyTorch operations alone.
    """

    name: str
    letter: str = ""
    title: str
    off: FeatureValue
    names: tuple[FeatureValue, ...] = ()
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    phases: tuple[Phase, ...] = PHASES
    counter: str
    may_be_zero: bool = False
    kernel_argument: bool = False
    routes: bool = False
    alters_outputs: bool = False
    alters_experts: bool = False
    simulated: bool = False
    best: Best | None = None
    hook: Callable[[FeatureValue], object] | None = None
    recordable: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it comes from outside."""
        return self.hook is not None

    @property
    def key(self) -> str:
        """Hydra override that sets the feature."""
        return f"engine.own.{self.name}" if self.is_own else f"engine.{self.name}"

    @property
    def serving(self) -> bool:
        """Whether it acts where requests are served, and nowhere else."""
        return self.phases == ("serve",)

    @property
    def valued(self) -> bool:
        """Whether the feature takes a value (`deferral=3`) instead of being on or off."""
        return self.is_own or not isinstance(self.off, bool)

    @property
    def counts(self) -> bool:
        """Whether its values are numbers of something, `names` aside."""
        return not isinstance(self.off, (bool, str))

    @property
    def word(self) -> str:
        """How messages write that it is on: `+v`, `deferral=N`, `handover=flags`."""
        if not self.valued:
            return f"+{self.letter}"
        if self.counts:
            return f"{self.name}={'X' if isinstance(self.off, float) else 'N'}"
        names = "|".join(value_text(name) for name in self.names if name != self.off)
        return f"{self.name}={names or ('true' if isinstance(self.off, bool) else 'TEXT')}"

    @property
    def mark(self) -> str:
        """The feature in running text: `+v`, `deferral`."""
        return f"+{self.letter}" if self.letter else self.name

    def tag(self, value: FeatureValue) -> str:
        """How labels write the feature: `+v`, `deferral=3`; empty when off."""
        if value == self.off:
            return ""
        return f"{self.name}={value_text(value)}" if self.valued else self.mark

    def where(self, value: FeatureValue) -> str:
        """What a reason names: `+v`, `engine.deferral=3`."""
        return f"{self.key}={value_text(value)}" if self.valued else self.mark

    def require(self, value: FeatureValue) -> None:
        """Raises ValueError for a value of another type than `off` has, and for a name that is not allowed."""
        if value in self.names:
            return
        kind = (int, float) if isinstance(self.off, float) else type(self.off)
        is_kind = isinstance(value, kind) and isinstance(value, bool) == isinstance(self.off, bool)
        if not is_kind or (isinstance(value, float) and not isfinite(value)) or (self.names and not self.counts):
            raise ValueError(f"{self.key}={value}: allowed are values such as {self.word}, and {self.off} for off")

    def parse(self, text: str) -> FeatureValue:
        """The value that a label writes as `text`. Raises ValueError for what is none."""
        named = {value_text(name): name for name in self.names} | ({"true": True} if self.off is False else {})
        if text in named:
            return named[text]
        if isinstance(self.off, str) and not self.names and text:
            return text
        if isinstance(self.off, float):
            return float(text)
        if self.counts and (text.isdecimal() or self.is_own):
            return int(text)
        raise ValueError


def value_text(value: FeatureValue) -> str:
    """A value as labels and overrides write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
