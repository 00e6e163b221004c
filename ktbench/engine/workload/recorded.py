"""Recorded routing: activation profiles (selections per expert) and traces to replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.arrays import array_names, read_array, split_array_name
from ktbench.files import whole_file
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.shape import moe_shape
from ktbench.spec.wire import from_plain, to_plain

_SETTING = "engine.placement.profile"


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """What a model and its slices have in common, and models that route differently have not. Widths in elements."""

    model_type: str
    experts: int
    top_k: int
    hidden: int
    expert_ffn: int
    shared_ffn: int
    dense_ffn: int
    attention_params: int

    @classmethod
    def of(cls, model: ModelSpec) -> Architecture:
        """From the configuration; a checkpoint's and a shipped one of the same model give the same."""
        shape = moe_shape(model.config)
        sizes = {field.name: getattr(shape, field.name) for field in fields(cls) if field.name != "model_type"}
        return cls(model_type=str(model.config.get("model_type", "")), **sizes)

    def differences(self, other: Architecture) -> Iterator[str]:
        """`experts 128, not 64` for every fact in which `other` differs from this one."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                yield f"{field.name} {mine}, not {theirs}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What was recorded: the label of the `model`, `tokens` that were run, and a description of the run."""

    model: str
    architecture: Architecture
    tokens: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationProfile(Recording):
    """How often each expert was selected over `tokens` tokens: `counts` int64 [MoE layers, experts].

    Raises ValueError for arrays that are no counts.
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts, experts = self.counts, self.architecture.experts
        if counts.dtype.kind not in "iu" or counts.ndim != 2 or counts.size == 0:
            raise ValueError(f"array of {counts.dtype} {list(counts.shape)}, must hold counts [MoE layers, experts]")
        if counts.shape[1] != experts:
            raise ValueError(f"counts of {counts.shape[1]} experts, {self.model} has {experts}")
        if counts.min() < 0:
            layer, expert = np.argwhere(counts < 0)[0]
            raise ValueError(
                f"{counts.min()} selections are counted (layer {layer}, expert {expert}), must be 0 or more"
            )

    def save(self, path: Path) -> None:
        """Write an npz of two plain arrays, `counts` and the rest as JSON text; whole or not at all.

        Raises NotWritten.
        """
        about = {field.name: to_plain(getattr(self, field.name)) for field in fields(Recording)}
        with whole_file(path, synced=True) as part, part.open("wb") as file:
            np.savez_compressed(file, counts=self.counts, about=np.array(json.dumps(about)))

    def hottest_share(self, part: float = 0.1) -> NDArray[np.float64]:
        """[MoE layers]: share of a layer's selections that went to its hottest `part` of experts, at least one."""
        hottest = max(1, round(part * self.counts.shape[1]))
        ordered = np.sort(self.counts, axis=1)[:, ::-1]
        shares: NDArray[np.float64] = ordered[:, :hottest].sum(axis=1) / np.maximum(ordered.sum(axis=1), 1)
        return shares

    def evenness(self) -> NDArray[np.float64]:
        """[MoE layers]: entropy of a layer's selections over the highest possible, 1 where all experts are equally hot.

        Pielou's evenness H / ln E (Pielou 1966).
        """
        shares = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        surprise = -np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        evenness: NDArray[np.float64] = (shares * surprise).sum(axis=1) / np.log(max(self.counts.shape[1], 2))
        return evenness


def count_selections(ids: NDArray[np.integer[Any]], experts: int) -> NDArray[np.int64]:
    """[experts] int64: how often each is in `ids`, whose shape does not matter; negative ids are ignored."""
    return np.bincount(ids[ids >= 0], minlength=experts).astype(np.int64)


def read_profile(profile: str, model: ModelSpec) -> ActivationProfile:
    """The profile in FILE, as `record` writes it, or the counts in FILE:ARRAY, for the MoE layers of `model`.

    A model of fewer layers than were recorded takes the first ones. An array [layers, experts] has no such values
    model but the number of experts; layers without a selection are dense ones and left out. Raises ValueError in one
    line where the file is not there or not a profile, and where it is one of another model or of too few layers.
    """
    file, array = split_array_name(_SETTING, profile)
    where = f"{_SETTING}={profile}"
    try:
        read = _given(file, array, model, profile) if array else _read_recorded(file)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(_SETTING) else f"{where}: {error}") from None
    _require_same(where, read, model)
    layers = model.shape.moe_layers
    if len(read.counts) < layers:
        raise ValueError(f"{where}: has {len(read.counts)} MoE layers, {model.name} needs {layers}")
    return replace(read, counts=read.counts[:layers])


def _read_recorded(file: Path) -> ActivationProfile:
    names = array_names(_SETTING, file)
    if not {"counts", "about"} <= set(names):
        raise ValueError(
            "not an activation profile; `record` writes one, or name an array of counts as FILE:ARRAY, "
            f"the file has {', '.join(names)}"
        )
    about, counts = read_array(_SETTING, file, "about"), read_array(_SETTING, file, "counts")
    try:
        recording = from_plain(json.loads(str(about)), Recording)
    except ValueError as error:
        raise ValueError(f"not an activation profile ({error})") from None
    return ActivationProfile(
        counts=counts, **{field.name: getattr(recording, field.name) for field in fields(Recording)}
    )


def _given(file: Path, array: str, model: ModelSpec, source: str) -> ActivationProfile:
    """Counts without a model: they are taken as those of `model`."""
    counts = read_array(_SETTING, file, array)
    selected = counts[counts.any(axis=1)] if counts.ndim == 2 else counts
    architecture = Architecture.of(model)
    return ActivationProfile(
        model=model.name,
        architecture=architecture,
        counts=selected.astype(np.int64) if selected.dtype.kind in "iu" else selected,
        tokens=int(selected[0].sum()) // architecture.top_k if selected.size else 0,
        source=source,
    )


def _require_same(where: str, profile: ActivationProfile, model: ModelSpec) -> None:
    differing = "; ".join(profile.architecture.differences(Architecture.of(model)))
    if differing:
        raise ValueError(f"{where}: recorded from {profile.model}, this is {model.name} ({differing})")


class Trace(Protocol):
    """Selections to replay, of one MoE layer."""

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        """[tokens, top_k] expert ids of one step, distinct within a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountTrace:
    """How often each expert was selected (`counts` [E]): tokens draw from that, without replacement.

    Sequential draws with probability proportional to the counts are the Plackett-Luce model; adding Gumbel noise to the
    log counts and taking the highest gives such draws (Yellott 1977).
    """

    counts: NDArray[np.int64]
    top_k: int
    seed: int

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        with np.errstate(divide="ignore"):
            log_counts = np.log(self.counts)
        noise = np.random.default_rng((self.seed, step)).gumbel(size=(tokens, len(self.counts)))
        return np.argsort(-(log_counts + noise), axis=1)[:, : self.top_k].astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTrace:
    """The experts of each token in turn (`ids` [T, k]), replayed from the token `first` on and around the end."""

    ids: NDArray[np.int64]
    first: int

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        return self.ids[(self.first + step * tokens + np.arange(tokens)) % len(self.ids)]


def read_trace(trace: str, experts: int, top_k: int, seed: int) -> Trace:
    """The trace in FILE or FILE:ARRAY, an npz; without ARRAY the first one whose name starts with `decode`.

    An array [layers, experts] holds selection counts, one of [tokens, layers, k] expert ids; `seed` chooses the layer,
    and the token to begin with. Without an array called `decode…` the first is taken whose name ends with `experts`.
    Raises ValueError in one line where the file or the array is not there or not such a trace, and where it is one of
    a model with other numbers of experts.
    """
    file, name = split_array_name("workload.trace", trace)
    array = read_array("workload.trace", file, name or _default(array_names("workload.trace", file)))
    if array.dtype.kind not in "iu" or array.ndim not in (2, 3) or array.size == 0 or array.min() < 0:
        raise ValueError(
            f"workload.trace={trace}: array of {array.dtype} {list(array.shape)}, "
            "must hold counts [layers, experts] or expert ids [tokens, layers, k]"
        )
    rng = np.random.default_rng(seed)
    return (_counts if array.ndim == 2 else _tokens)(trace, array.astype(np.int64), (experts, top_k), rng)


def _default(names: list[str]) -> str:
    decode = [name for name in names if name.startswith("decode")]
    experts = [name for name in names if name.endswith("experts")]
    return (decode + experts + ["decode…"])[0]


def _counts(trace: str, counts: NDArray[np.int64], sizes: tuple[int, int], rng: np.random.Generator) -> CountTrace:
    experts, top_k = sizes
    if counts.shape[1] != experts:
        raise ValueError(f"workload.trace={trace}: counts of {counts.shape[1]} experts, the model has {experts}")
    layers = np.flatnonzero((counts > 0).sum(axis=1) >= top_k)
    if not len(layers):
        raise ValueError(f"workload.trace={trace}: in no layer were {top_k} or more experts selected")
    return CountTrace(counts=counts[rng.choice(layers)], top_k=top_k, seed=int(rng.integers(2**31)))


def _tokens(trace: str, ids: NDArray[np.int64], sizes: tuple[int, int], rng: np.random.Generator) -> TokenTrace:
    seen = int(ids.max()) + 1, ids.shape[2]
    if seen != sizes:
        raise ValueError(
            f"workload.trace={trace}: {seen[0]} experts and {seen[1]} per token, "
            f"the model has {sizes[0]} and {sizes[1]} per token"
        )
    layer = ids[:, rng.integers(ids.shape[1])]
    ordered = np.sort(layer, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError(f"workload.trace={trace}: a token selects the same expert twice")
    return TokenTrace(ids=layer, first=int(rng.integers(len(layer))))
