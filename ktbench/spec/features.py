"""The feature table: one row per optimisation, which holds all that the rest of the code asks of a toggle."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from typing import TYPE_CHECKING, Literal, get_args

from ktbench.spec.weights import DEVICE_UNPACKS

if TYPE_CHECKING:
    from ktbench.spec.run_spec import RunSpec

# On or off, how many, or which one; `auto` leaves the number to the engine.
FeatureValue = bool | int | float | str
# Entry points of this group name rows of other packages; a file of the user's own has them as these.
FEATURE_GROUP, FEATURE_NAMES, MOST_FILE_BYTES = "ktbench.features", ("FEATURE", "FEATURES"), 1 << 20
_NAME = re.compile(r"[a-z][a-z0-9_]*")
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
    logits are compared, and need not agree; where it `alters_experts` the outputs of single calls of experts need not
    be those of float32 arithmetic either. Cells on described machines refuse what is not `simulated`.

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


_SHIPPED: tuple[Feature, ...] = (
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

BY_NAME: dict[str, Feature] = {feature.name: feature for feature in _SHIPPED}
FEATURES = BY_NAME.values()  # those of a user's own file come later
_BY_LETTER: Mapping[str, Feature] = {feature.letter: feature for feature in FEATURES if feature.letter}
# Hooks see the routing of the host role, in memory of the host.
_OF_HOOKS = (
    Limit(lambda spec: spec.engine.device != "cpu", "a feature of your own runs on CPU cores, leave out engine.device"),
    Limit(
        lambda spec: spec.engine.placement.policy != "host",
        "a feature of your own sees the experts of the host alone, leave out engine.placement",
    ),
)


def register(feature: Feature) -> None:
    """Add a feature from outside to the table. Raises ValueError for a name that is taken or is none, and no hook."""
    if not _NAME.fullmatch(feature.name):
        raise ValueError(f"feature {feature.name!r}: a name has letters a to z, digits and '_'")
    if feature.name in BY_NAME and not BY_NAME[feature.name].is_own:
        raise ValueError(f"feature {feature.name}: is one of ktbench's own, change the name")
    if feature.hook is None or feature.letter:
        raise ValueError(f"feature {feature.name}: has a hook and no letter where it comes from outside")
    if taken := next((one for one in FEATURES if one.counter == feature.counter and one.name != feature.name), None):
        raise ValueError(f"feature {feature.name}: {feature.counter} is the counter of {taken.name}, change it")
    phases = tuple(phase for phase in feature.phases if phase in _NETWORKS)
    limits = (*_OF_HOOKS, *_required(feature.requires), *feature.limits)
    BY_NAME[feature.name] = replace(feature, phases=phases, limits=limits)


def _required(names: tuple[str, ...]) -> tuple[Limit, ...]:
    """The limit of what needs one of these features. Raises ValueError for a name of none."""
    if unknown := next((name for name in names if name not in BY_NAME), None):
        raise ValueError(f"requires {unknown}: no such feature")
    needed = " or ".join(BY_NAME[name].word for name in names)
    lacks = Limit(lambda spec: not any(other.name in names for other, _ in spec.engine.on), f"needs {needed}")
    return (lacks,) if names else ()


def register_file(file: str) -> None:
    """Run a Python file and add the features that it names FEATURE or FEATURES. Raises ValueError in one line."""
    where = f"engine.own_file={file}"
    try:
        found = spec_from_file_location("ktbench_own_features", file)
        if found is None or found.loader is None:
            raise ImportError("is no Python file, FILE.py")
        module = module_from_spec(found)
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ValueError(f"{where}: {type(error).__name__}: {error}".splitlines()[0]) from None
    single, several = (getattr(module, name, ()) for name in FEATURE_NAMES)
    rows = [single] if isinstance(single, Feature) else [*several]
    if not rows or not all(isinstance(row, Feature) for row in rows):
        raise ValueError(f"{where}: names no {' and no '.join(FEATURE_NAMES)} of ktbench.spec.features")
    for row in rows:
        try:
            register(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _plug_in() -> None:
    """Add the rows that entry points name; cells that ask for one that cannot be read are told why."""
    for point in sorted(metadata.entry_points(group=FEATURE_GROUP), key=lambda point: point.name):
        try:
            row = point.load()
            if not isinstance(row, Feature) or row.name != point.name:
                raise TypeError(f"is no Feature that is called {point.name}")
            register(row)
        except (Exception, SystemExit) as error:  # code of others: whatever it does, all else remains
            why = f"{point.value}: {type(error).__name__}: {error}".splitlines()[0]
            if _NAME.fullmatch(point.name) and point.name not in BY_NAME:
                register(_unusable(point.name, why))


def _unusable(name: str, why: str) -> Feature:
    """A row whose cells cannot run."""
    limits = (Limit(lambda _: True, why),)
    return Feature(name=name, title=name, off="", counter=f"{name}_calls", limits=limits, hook=lambda value: value)


_plug_in()


def features_on(values: Mapping[str, FeatureValue]) -> dict[str, FeatureValue]:
    """Those of a setting that are on, by name; one that is not known here is on, a log may have it."""
    return {name: value for name, value in values.items() if name not in BY_NAME or value != BY_NAME[name].off}


def feature_tag(name: str, value: FeatureValue) -> str:
    """How labels write a feature that is on: by the name that a log has for it where it is not known here."""
    return BY_NAME[name].tag(value) if name in BY_NAME else f"{name}={value_text(value)}"


def features_label(values: Mapping[str, FeatureValue]) -> str:
    """Label of a feature setting, in its order: `base`, `+v+d`, `+v deferral=3`."""
    tags = [feature_tag(name, value) for name, value in features_on(values).items()]
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
    name, _, text = word.partition("=")
    feature = BY_NAME.get(name)
    if text.isdecimal() and (feature is None or not feature.valued):
        raise _unknown(name, word)
    try:
        if feature is not None and feature.valued:
            return {name: feature.parse(text)}
    except ValueError:
        pass
    raise ValueError(f"feature {word!r}: allowed are {allowed_features()}")


def _lettered(letter: str, word: str) -> str:
    if letter not in _BY_LETTER:
        raise _unknown(letter, word)
    return _BY_LETTER[letter].name


def _unknown(name: str, word: str) -> ValueError:
    return ValueError(f"feature {name!r} in {word!r}: allowed are {allowed_features()}")


def allowed_features() -> str:
    """The allowed words, for messages."""
    return ", ".join(feature.word for feature in FEATURES)
