"""The feature table: one row per optimisation, which holds all that the rest of the code asks of a toggle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ktbench.spec.weights import DEVICE_UNPACKS

if TYPE_CHECKING:
    from ktbench.spec.run_spec import RunSpec

# On or off, how many, or which one; `auto` leaves the number to the engine.
FeatureValue = bool | int | float | str
Phase = Literal["prefill", "decode", "layer", "serve", "train"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Limit:
    """A cell in which a feature that is on cannot run: where `holds` is true of its spec. `why` may quote the spec."""

    holds: Callable[[RunSpec], bool]
    why: str | Callable[[RunSpec], str]

    def text(self, spec: RunSpec) -> str:
        """What is wrong with the cell."""
        return self.why if isinstance(self.why, str) else self.why(spec)


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
    logits are compared, and need not agree. Cells on described machines refuse what is not `simulated`.
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
    simulated: bool = False

    @property
    def key(self) -> str:
        """Hydra override that sets the feature."""
        return f"engine.{self.name}"

    @property
    def serving(self) -> bool:
        """Whether it acts where requests are served, and nowhere else."""
        return self.phases == ("serve",)

    @property
    def valued(self) -> bool:
        """Whether the feature takes a value (`deferral=3`) instead of being on or off."""
        return not isinstance(self.off, bool)

    @property
    def counts(self) -> bool:
        """Whether its values are numbers of something, `names` aside."""
        return self.valued and self.off not in self.names

    @property
    def word(self) -> str:
        """How messages write that it is on: `+v`, `deferral=N`, `handover=flags`."""
        if self.valued and not self.counts:
            return f"{self.name}={'|'.join(str(name) for name in self.names if name != self.off)}"
        return f"{self.name}=N" if self.valued else f"+{self.letter}"

    @property
    def mark(self) -> str:
        """The feature in running text: `+v`, `deferral`."""
        return f"+{self.letter}" if self.letter else self.name

    def tag(self, value: FeatureValue) -> str:
        """How labels write the feature: `+v`, `deferral=3`; empty when off."""
        if value == self.off:
            return ""
        return f"{self.name}={value}" if self.valued else self.mark

    def where(self, value: FeatureValue) -> str:
        """What a reason names: `+v`, `engine.deferral=3`."""
        return f"{self.key}={value}" if self.valued else self.mark


FUSED = ("avx2", "avx512", "amx")  # one of them runs the fused operator
# At least so many of a token's experts stay immediate, for accuracy (KTransformers, section 4.2).
MIN_IMMEDIATE_EXPERTS = 2
_INFERENCE: tuple[Phase, ...] = ("prefill", "decode", "layer", "serve")
_NETWORKS: tuple[Phase, ...] = ("prefill", "decode", "serve")
_ON_CUDA = Limit(lambda spec: spec.engine.device == "cpu", "needs a CUDA device, set engine.device=cuda")


def _chooses_streaming(spec: RunSpec) -> bool:
    """Whether a chunk of a prompt, as a graph captures it, may stream its experts."""
    work, streamed = spec.workload, spec.engine.device_prefill_tokens
    if work.phase != "prefill" or not work.has_whole_chunk:
        return False
    return streamed == "auto" or 0 < streamed <= work.batch * (work.chunk or 0)


FEATURES: tuple[Feature, ...] = (
    Feature(
        name="avx2",
        letter="a",
        title="fused MoE kernel, AVX2",
        off=False,
        needs=("avx2",),
        counter="avx2_calls",
        kernel_argument=True,
        simulated=True,
    ),
    Feature(
        name="avx512",
        letter="v",
        title="fused MoE kernel, AVX-512",
        off=False,
        needs=("avx512",),
        counter="avx512_calls",
        kernel_argument=True,
        simulated=True,
    ),
    Feature(
        name="amx",
        letter="m",
        title="fused MoE kernel, Intel AMX",
        off=False,
        needs=("amx",),
        counter="amx_tiles",
        kernel_argument=True,
        simulated=True,
    ),
    Feature(
        name="dynamic",
        letter="d",
        title="dynamic work scheduling",
        off=False,
        requires=FUSED,
        counter="tasks_dynamic",
        kernel_argument=True,
        simulated=True,
    ),
    Feature(
        name="numa",
        letter="n",
        title="NUMA-aware tensor parallelism",
        off=False,
        needs=("numa",),
        requires=FUSED,
        limits=(
            Limit(
                lambda spec: spec.maps_packed,
                "experts that model.packed keeps are not split over domains, leave out model.packed",
            ),
            Limit(
                lambda spec: spec.engine.threads is not None and spec.engine.threads < (spec.engine.domains or 1),
                lambda spec: (
                    f"engine.domains={spec.engine.domains} needs as many threads, engine.threads={spec.engine.threads}"
                ),
            ),
        ),
        counter="local_bytes",
        kernel_argument=True,
        simulated=True,
    ),
    Feature(
        name="cuda_graph",
        letter="c",
        title="CUDA Graph",
        off=False,
        needs=("cuda",),
        limits=(
            _ON_CUDA,
            Limit(
                lambda spec: not spec.engine.fused,
                "a CUDA graph cannot replay the Python experts of base, add +a, +v or +m",
            ),
            Limit(
                lambda spec: spec.workload.phase == "prefill" and not spec.workload.has_whole_chunk,
                lambda spec: f"captures whole chunks of a prompt, set workload.chunk to {spec.workload.prompt} or less",
            ),
            Limit(
                _chooses_streaming,
                "a graph cannot choose which experts stream, leave out engine.device_prefill_tokens",
            ),
        ),
        phases=_INFERENCE,
        counter="graph_replays",
        simulated=True,
    ),
    Feature(
        name="packed_dense",
        letter="l",
        title="packed dense layers and recorded steps on the device role",
        off=False,
        requires=FUSED,
        limits=(
            Limit(
                lambda spec: spec.engine.device == "cuda",
                "packs linear layers for the CPU, leave it out with engine.device=cuda",
            ),
        ),
        phases=_NETWORKS,
        counter="linear_calls",
        simulated=True,
    ),
    Feature(
        name="deferral",
        title="Expert Deferral",
        off=0,
        names=("auto",),
        limits=(
            Limit(
                lambda spec: spec.model.shape.moe_layers < 2,
                lambda spec: f"needs 2 MoE layers or more, {spec.model.name} has {spec.model.shape.moe_layers} here",
            ),
            Limit(
                lambda spec: (
                    spec.engine.deferral == "auto" and not (spec.engine.roles_concurrent and spec.engine.fused)
                ),
                "needs engine.roles=split or engine.device=cuda, and +a, +v or +m",
            ),
            Limit(
                lambda spec: spec.engine.deferral == "auto" and spec.model.shape.top_k <= MIN_IMMEDIATE_EXPERTS,
                lambda spec: (
                    f"keeps {MIN_IMMEDIATE_EXPERTS} immediate experts, "
                    f"{spec.model.name} has top_k={spec.model.shape.top_k}"
                ),
            ),
        ),
        phases=_NETWORKS,
        counter="deferred_experts",
        routes=True,
        alters_outputs=True,
        simulated=True,
    ),
    Feature(
        name="skipping",
        title="Expert Skipping (control)",
        off=0,
        phases=_NETWORKS,
        counter="skipped_experts",
        routes=True,
        alters_outputs=True,
        simulated=True,
    ),
    Feature(
        name="device_prefill_tokens",
        title="layerwise prefill on the device, from so many tokens on",
        off=0,
        names=("auto",),
        needs=("cuda",),
        requires=FUSED,
        limits=(
            _ON_CUDA,
            Limit(
                lambda spec: spec.precision not in DEVICE_UNPACKS,
                lambda spec: f"a device unpacks {', '.join(DEVICE_UNPACKS)}, not precision={spec.precision}",
            ),
            Limit(lambda spec: spec.engine.numa, "experts that are split over domains do not stream, leave out +n"),
            Limit(
                lambda spec: spec.engine.placement.policy != "host",
                "all experts pass through the device, leave out engine.placement",
            ),
        ),
        phases=("prefill",),
        counter="streamed_bytes",
        simulated=True,
    ),
    Feature(
        name="handover",
        title="hand-over to the host by flags in memory",
        off="host_function",
        names=("host_function", "flags"),
        needs=("cuda", "stream_memory"),
        requires=FUSED,
        limits=(_ON_CUDA,),
        counter="flag_answers",
    ),
    Feature(
        name="batching",
        letter="b",
        title="continuous batching of requests",
        off=False,
        phases=("serve",),
        counter="batched_tokens",
    ),
    Feature(
        name="chunked_prefill",
        letter="k",
        title="chunked prefill beside decode",
        off=False,
        phases=("serve",),
        counter="prefill_chunks",
    ),
    Feature(
        name="prefix_cache",
        letter="p",
        title="prefix cache of prompts",
        off=False,
        phases=("serve",),
        counter="cached_prompt_tokens",
    ),
    Feature(
        name="static_batch",
        title="static batches of requests (control)",
        off=0,
        phases=("serve",),
        counter="static_batch_tokens",
    ),
)

BY_NAME: Mapping[str, Feature] = {feature.name: feature for feature in FEATURES}
_BY_LETTER: Mapping[str, Feature] = {feature.letter: feature for feature in FEATURES if feature.letter}


def features_label(values: Mapping[str, FeatureValue]) -> str:
    """Label of a feature setting in table order: `base`, `+v+d`, `+v deferral=3`."""
    tags = [feature.tag(values[feature.name]) for feature in FEATURES]
    letters = "".join(tag for tag in tags if tag.startswith("+"))
    numbers = [tag for tag in tags if tag and not tag.startswith("+")]
    return " ".join(filter(None, [letters, *numbers])) or "base"


def parse_features(label: str) -> dict[str, FeatureValue]:
    """Feature values of a label such as `base`, `+v+d` or `+v+d deferral=3`.

    Raises ValueError naming the unknown part and the allowed ones.
    """
    values: dict[str, FeatureValue] = {feature.name: feature.off for feature in FEATURES}
    for word in label.split():
        if word == "base":
            continue
        for name, value in _parse_word(word).items():
            values[name] = value
    return values


def _parse_word(word: str) -> dict[str, FeatureValue]:
    if word.startswith("+"):
        return {_lettered(letter, word): True for letter in word[1:].split("+")}
    name, _, value = word.partition("=")
    names = BY_NAME[name].names if name in BY_NAME else ()
    if value in names:
        return {name: names[names.index(value)]}
    if not value.isdecimal():
        raise ValueError(f"feature {word!r}: allowed are {allowed_features()}")
    if name not in BY_NAME or not BY_NAME[name].counts:
        raise _unknown(name, word)
    return {name: int(value)}


def _lettered(letter: str, word: str) -> str:
    if letter not in _BY_LETTER:
        raise _unknown(letter, word)
    return _BY_LETTER[letter].name


def _unknown(name: str, word: str) -> ValueError:
    return ValueError(f"feature {name!r} in {word!r}: allowed are {allowed_features()}")


def allowed_features() -> str:
    """The allowed words, for messages."""
    return ", ".join(feature.word for feature in FEATURES)
