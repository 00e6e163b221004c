"""What a system under test must offer to be measured: our engine, and every peer, behind the same few verbs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import FeatureValue
from ktbench.spec.record import Learning, StepParts, Work
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.serving.replay import Replay
from ktbench.spec.support import unsupported
from ktbench.spec.timeline import Timeline

T = TypeVar("T")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRole:
    """The CPU that a system may use: its physical cores, the NUMA nodes that they lie on, and the last-level cache.

    `cpus` has one cpu of every core, those of the device role first (see `ktbench.engine.roles`), and is empty where
    no thread has to sit on a certain one. `cache_bytes` counts all instances of that cache together, `memory_bytes` all
    memory that the process may use; 0 where they are not known.
    """

    cores: int
    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = (0,)
    cache_bytes: int = 0
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if self.cpus and len(self.cpus) != self.cores:
            raise ValueError(f"host role: {len(self.cpus)} cpus for {self.cores} cores, one of each core is needed")

    @property
    def usable_cpus(self) -> tuple[int, ...]:
        """`cpus`; where there are none, as many as `cores` of those that this thread may run on."""
        return self.cpus or tuple(sorted(os.sched_getaffinity(0)) * self.cores)[: self.cores]

    def threads_of(self, engine: EngineSpec) -> int:
        """The most threads that a cell may use. Raises ValueError for more than there are cores."""
        if engine.threads is not None and engine.threads > self.cores:
            raise ValueError(
                f"engine.threads={engine.threads}: allowed are 1 to {self.cores}, the cores of this process"
            )
        return engine.threads or self.cores


class Unsupported(Exception):
    """The system cannot run the cell; the text is the reason."""


class NotComputed(Exception):
    """The output of a step is not what the step computed; the text says what was found."""


class Diverged(Exception):
    """A loss of training is not finite; the text names the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsObservation:
    """One call of the routed experts of one layer: a seeded sample of its tokens (T).

    `layer` counts the decoder layers from 0. `hidden` and `output` are [T, hidden], `ids` and `gates` [T, k]; under
    Expert Deferral a layer has one call for the experts on time and one for the deferred, each with its own k. Where a
    model is trained, `output` is [T, 2 · hidden]: beside it the gradient of `hidden`.
    """

    layer: int
    hidden: NDArray[np.float32]
    ids: NDArray[np.int64]
    gates: NDArray[np.float32]
    output: NDArray[np.float32]


class System(Protocol):
    """A system under test. Between `configure` and the last `step` nothing but the work happens in `step`."""

    def configure(self, spec: RunSpec) -> None:
        """Set features and prepare the workload; cheap where only features changed. Raises Unsupported."""

    def start(self) -> None:
        """Back to the state before step 0: decode has the prompt in its cache and nothing after it."""

    def step(self) -> None:
        """The timed unit. prefill: one forward pass over [batch, prompt]; decode: one token for each sequence.

        layer: one call of the routed experts of one layer over [batch] tokens. train: forward, backward and optimiser.
        Raises Diverged.
        """

    def logits(self) -> NDArray[np.float32]:
        """[batch, vocab] at the last position of the last step; of a layer its output [batch, hidden]."""

    def observe(self, step: int | None = None, seed: int | None = None, /) -> tuple[ExpertsObservation, ...]:
        """Repeat a step since `start` (None: the last), untimed, with a tap on every experts call.

        It becomes the last step. `seed` draws the tokens that are observed (None: other ones each time). Empty where a
        peer shows none. Raises NotComputed for inputs that were changed meanwhile.
        """

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """[T, hidden]: the experts' output for the very inputs of an observation, in float32.

        The weights are those that are stored: quantised ones count as what they stand for. Of a layer only the last
        observation has a reference.
        """

    def counters(self) -> Mapping[str, int]:
        """Cumulative counts by counter name: those of the feature table and others, without those that do not apply.

        Where the roles are concurrent, `host_busy_ns` is the time in which routed experts ran on the host and
        `device_wait_ns` that in which the device role did nothing but wait for them; not measurable on CUDA.
        """

    def timeline(self) -> Timeline:
        """Repeat the last step, untimed, noting what each role did."""

    def chosen(self) -> Mapping[str, FeatureValue]:
        """By feature name what evidence is to show where that is not what the spec says.

        Such is what the system made of `auto`, and features that have nothing to do beside another.
        """

    def notes(self) -> tuple[str, ...]:
        """The system's own remarks on what it was configured for, such as what deferral=auto chose and why."""

    def work(self) -> Work | None:
        """What a step has to do at least, on average over the steps of the workload; None where it is not known."""

    def close(self) -> None:
        """Release weights and threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Calls that meet the experts of every layer, in an order drawn from `seed`.

    `units` names each by its layer, counted from 0, and its number among the calls of that layer. `experts` of the
    `of_experts` of all layers together are met: a sample of the layers where they are too many.
    """

    seed: int
    units: tuple[tuple[int, int], ...]
    experts: int
    of_experts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """One call of a survey: what was observed, its `truth` [T, hidden] in float32, and the experts that it met.

    `met` are pairs of a layer, counted from 0, and an expert.
    """

    seen: ExpertsObservation
    truth: NDArray[np.float32]
    met: frozenset[tuple[int, int]]


@runtime_checkable
class Inspected(Protocol):
    """A system whose steps can be examined one by one."""

    def renew(self, number: int | None) -> None:
        """From the next `start` on the steps have the tokens of round `number`, the same in every system.

        None: those of the workload itself.
        """

    def keep(self) -> None:
        """Copy the output of the last step, within the time of the step. Raises NotComputed where it is no tensor."""

    def kept(self, step: int) -> NDArray[np.float32]:
        """The copy of a step since `start`, as `logits` has it."""

    def survey(self, seed: int, most: int) -> Survey:
        """The calls that meet every expert; those of whole layers, drawn from `seed`, where there are more than `most`.

        The last such survey is the one that `meet` runs.
        """

    def meet(self, unit: tuple[int, int]) -> Surveyed:
        """Run a call of the survey, untimed, of as many tokens as one of a step."""


@runtime_checkable
class HasClock(Protocol):
    """A system that may time its steps itself as well, from which the overhead of driving it follows."""

    def own_step_s(self) -> float | None:
        """Mean seconds of the steps since `start` by its own clock; one must have been done. None where it has none."""


@runtime_checkable
class TrainingSteps(Protocol):
    """A system whose steps are those of training."""

    def parts(self) -> StepParts:
        """Of the steps since `start`."""

    def learning(self) -> Learning | None:
        """What all steps since `start` taught of held-out examples; None where random tokens are learned."""


@runtime_checkable
class SelfTimed(Protocol):
    """A system that is a program of its own: it has no steps that could be timed from outside, and shows no logits."""

    def own_samples_s(self) -> tuple[float, ...]:
        """Run the workload and give the seconds of its steps as the program timed them."""


@runtime_checkable
class Replays(Protocol):
    """A system that serves requests: a step is a block of them, and whole answers are checked in place of logits."""

    def replay(self) -> Replay:
        """When every token came since `start`; all steps must have been done."""

    def differing(self, tolerance: float) -> str:
        """Why a sample of the answers is not what the system answers to one request alone; empty where it is."""

    def passed_mutant(self, tolerance: float) -> str:
        """A wrong answer that `differing` would pass; empty where it finds all that are tried."""


def require(spec: RunSpec, loaded: ModelSpec) -> None:
    """Raises ValueError for another model than is loaded, and Unsupported with the reason for what cannot run."""
    if spec.model != loaded:
        raise ValueError(f"model {spec.model.name} requested, but {loaded.name} is loaded")
    if why := unsupported(spec):
        raise Unsupported(why)


def configured(part: T | None) -> T:
    """What `configure` sets. Raises ValueError where it was not called yet."""
    if part is None:
        raise ValueError("configure comes before every other call")
    return part
