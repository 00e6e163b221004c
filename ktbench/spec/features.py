"""The feature table: one row per optimisation, the only place that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# On or off, or how many; `auto` leaves the number to the engine.
FeatureValue = bool | int | Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One toggle of the engine and what proves that it ran.

    `needs` names machine capabilities (`ktbench.host.capabilities`), `requires` lists feature names of which at least
    one must be on as well, `counter` is the engine counter that must move when the feature is on and stay still when it
    is off.
    """

    name: str
    letter: str
    title: str
    off: bool | int
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    counter: str

    @property
    def key(self) -> str:
        """Hydra override that sets the feature."""
        return f"engine.{self.name}"

    @property
    def valued(self) -> bool:
        """Whether the feature takes a number (`deferral=3`) instead of being on or off."""
        return not isinstance(self.off, bool)

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
    Feature(name="deferral", letter="", title="Expert Deferral", off=0, counter="deferred_experts"),
    Feature(name="skipping", letter="", title="Expert Skipping (control)", off=0, counter="skipped_experts"),
    Feature(
        name="device_prefill_tokens",
        letter="",
        title="layerwise prefill on the device, from so many tokens on",
        off=0,
        needs=("cuda",),
        requires=FUSED,
        counter="streamed_bytes",
    ),
)

# Of these numbers the engine may choose one.
CHOSEN = ("deferral", "device_prefill_tokens")

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
    name, _, number = word.partition("=")
    if number == "auto" and name in CHOSEN:
        return {name: "auto"}
    if not number.isdecimal():
        raise ValueError(f"feature {word!r}: allowed are {allowed_features()}")
    if name not in BY_NAME or not BY_NAME[name].valued:
        raise _unknown(name, word)
    return {name: int(number)}


def _lettered(letter: str, word: str) -> str:
    if letter not in _BY_LETTER:
        raise _unknown(letter, word)
    return _BY_LETTER[letter].name


def _unknown(name: str, word: str) -> ValueError:
    return ValueError(f"feature {name!r} in {word!r}: allowed are {allowed_features()}")


def allowed_features() -> str:
    """The allowed words, for messages."""
    return ", ".join(f"{f.name}=N" if f.valued else f"+{f.letter}" for f in FEATURES)
