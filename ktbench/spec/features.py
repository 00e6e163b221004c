"""The feature table: one row per optimisation, the only place that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# On or off, how many, or which one; `auto` leaves the number to the engine.
FeatureValue = bool | int | Literal["auto", "host_function", "flags"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One toggle of the engine and what proves that it ran.

    `needs` names machine capabilities (`ktbench.host.capabilities`), `requires` lists feature names of which at least
    one must be on as well, `counter` is the engine counter that must move when the feature is on and stay still when it
    is off. `names` are the values that are not numbers. Those of `serving` act where requests are served.
    """

    name: str
    letter: str
    title: str
    off: FeatureValue
    names: tuple[FeatureValue, ...] = ()
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    serving: bool = False
    counter: str

    @property
    def key(self) -> str:
        """Hydra override that sets the feature."""
        return f"engine.{self.name}"

    @property
    def valued(self) -> bool:
        """Whether the feature takes a value (`deferral=3`) instead of being on or off."""
        return not isinstance(self.off, bool)

    @property
    def word(self) -> str:
        """How messages write that it is on: `+v`, `deferral=N`, `handover=flags`."""
        if self.off in self.names:
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


FUSED = ("avx2", "avx512", "amx")  # one of them runs the fused operator

FEATURES: tuple[Feature, ...] = (
    Feature(name="avx2", letter="a", title="fused MoE kernel, AVX2", off=False, needs=("avx2",), counter="avx2_calls"),
    Feature(
        name="avx512",
        letter="v",
        title="fused MoE kernel, AVX-512",
        off=False,
        needs=("avx512",),
        counter="avx512_calls",
    ),
    Feature(
        name="amx", letter="m", title="fused MoE kernel, Intel AMX", off=False, needs=("amx",), counter="amx_tiles"
    ),
    Feature(
        name="dynamic",
        letter="d",
        title="dynamic work scheduling",
        off=False,
        requires=FUSED,
        counter="tasks_dynamic",
    ),
    Feature(
        name="numa",
        letter="n",
        title="NUMA-aware tensor parallelism",
        off=False,
        needs=("numa",),
        requires=FUSED,
        counter="local_bytes",
    ),
    Feature(name="cuda_graph", letter="c", title="CUDA Graph", off=False, needs=("cuda",), counter="graph_replays"),
    Feature(
        name="packed_dense",
        letter="l",
        title="packed dense layers and recorded steps on the device role",
        off=False,
        requires=FUSED,
        counter="linear_calls",
    ),
    Feature(name="deferral", letter="", title="Expert Deferral", off=0, names=("auto",), counter="deferred_experts"),
    Feature(name="skipping", letter="", title="Expert Skipping (control)", off=0, counter="skipped_experts"),
    Feature(
        name="device_prefill_tokens",
        letter="",
        title="layerwise prefill on the device, from so many tokens on",
        off=0,
        names=("auto",),
        needs=("cuda",),
        requires=FUSED,
        counter="streamed_bytes",
    ),
    Feature(
        name="handover",
        letter="",
        title="hand-over to the host by flags in memory",
        off="host_function",
        names=("host_function", "flags"),
        needs=("cuda",),
        requires=FUSED,
        counter="flag_answers",
    ),
    Feature(
        name="batching",
        letter="b",
        title="continuous batching of requests",
        off=False,
        serving=True,
        counter="batched_tokens",
    ),
    Feature(
        name="chunked_prefill",
        letter="k",
        title="chunked prefill beside decode",
        off=False,
        serving=True,
        counter="prefill_chunks",
    ),
    Feature(
        name="prefix_cache",
        letter="p",
        title="prefix cache of prompts",
        off=False,
        serving=True,
        counter="cached_prompt_tokens",
    ),
    Feature(
        name="static_batch",
        letter="",
        title="static batches of requests (control)",
        off=0,
        serving=True,
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
    if name not in BY_NAME or not BY_NAME[name].valued or BY_NAME[name].off in names:
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
