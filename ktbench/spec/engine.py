"""The engine's side of a spec: features, roles, where experts live, and the rule of `deferral=auto`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any, Literal

from msgspec import Meta

from ktbench.spec.errors import at_least, check_ranges
from ktbench.spec.features import (
    BY_NAME,
    FEATURES,
    FUSED,
    MIN_IMMEDIATE_EXPERTS,
    Best,
    Feature,
    FeatureValue,
    features_label,
)

_AS_BUSY = 0.97
# Up to four tokens per expert run on AVX-512 (KTransformers, section 3.2).
PAPER_AMX_MIN_TOKENS = 5
Device = Literal["cpu", "cuda"]
Roles = Literal["shared", "split"]
Handover = Literal["host_function", "flags"]
# The library of the CUDA driver, and what `flags` need of it: stream memory operations, from CUDA 11.7 on.
CUDA_DRIVER = "libcuda.so.1"
STREAM_MEMORY = ("cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2")
Policy = Literal["host", "uniform", "frequency", "front_loading", "random", "dynamic"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementSpec:
    """Which routed experts live with the device role (KTransformers, section 6.5 and its expert placement table).

    `ratio` of all experts of all layers do: `uniform` the same number in every layer, `frequency` those that `profile`
    saw most often in any layer, `front_loading` whole layers from the first on, `random` anywhere, `dynamic` begins as
    uniform and moves to what was selected most often every `every` steps. `host` leaves all with the host.
    """

    policy: Annotated[Policy, Meta(description="which experts are in the device's memory")] = "host"
    ratio: Annotated[float, Meta(description="share of all experts there, 0 to 1")] = 0.0
    profile: Annotated[str | None, Meta(description="policy=frequency: a file of `record`")] = None
    every: Annotated[int, Meta(ge=1, description="policy=dynamic: steps between moves")] = 8
    seed: Annotated[int, Meta(description="of what a policy leaves to chance")] = 0

    def __post_init__(self) -> None:
        check_ranges(self, "engine.placement")
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"engine.placement.ratio={self.ratio}: allowed are 0 to 1")
        if (self.policy == "host") != (self.ratio == 0):
            raise ValueError(
                f"engine.placement: policy={self.policy} with ratio={self.ratio}, "
                "policy=host goes with ratio=0 and every other policy with a ratio above 0"
            )
        if self.profile is not None and self.policy != "frequency":
            raise ValueError(
                f"engine.placement: policy={self.policy} with profile={self.profile}, policy=frequency alone takes one"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSpec:
    """The limits within which requests are served.

    At most `max_sequences` requests run and `max_waiting` wait. A step takes up to `chunk_tokens` prompt tokens. Keys
    and values lie in pages of `page_tokens` positions, `cache_tokens` positions in all (None: as many as memory has
    room for). The prefix cache keeps pages that leave them in up to `ram_bytes` of memory, and what leaves those in up
    to `disk_bytes` of files in the folder `disk` (None: nowhere).
    """

    chunk_tokens: Annotated[int, Meta(ge=1, description="prompt tokens of a step with +k")] = 256
    max_sequences: Annotated[int, Meta(ge=1, description="requests that run at once")] = 16
    max_waiting: Annotated[int, Meta(ge=1, description="requests that wait")] = 256
    page_tokens: Annotated[int, Meta(ge=1, description="positions of a page of keys and values")] = 16
    cache_tokens: Annotated[int | None, Meta(description="positions of all pages; null: as memory allows")] = None
    ram_bytes: Annotated[int, Meta(ge=0, description="memory for pages that leave the device")] = 0
    disk: Annotated[str | None, Meta(description="folder for pages that leave memory")] = None
    disk_bytes: Annotated[int, Meta(ge=0, description="their limit")] = 0

    def __post_init__(self) -> None:
        check_ranges(self, "engine.serving")
        at_least("engine.serving.cache_tokens", self.cache_tokens, self.page_tokens)
        if (self.disk is None) != (self.disk_bytes == 0) or self.disk == "":
            raise ValueError(
                f"engine.serving: disk={self.disk} with disk_bytes={self.disk_bytes}, "
                "a folder goes with a number of bytes above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """Feature values and the knobs behind them.

    `threads` counts the cores of both roles together; None takes all that the process may use. With `roles=split` the
    device role has `device_threads` of them to itself (None: half) and the host role the others, with `roles=shared`
    both have all. +a excludes +v and +m. The hybrid of +v and +m runs AMX from `amx_min_tokens` tokens per expert up,
    below it AVX-512 (KTransformers, section 3.2); `auto` is the crossover of the machine. `domains` is how many parts
    +n splits the experts into: None for one per NUMA node, a number for logical domains of equally many cores.
    `deferral=auto` lets the engine choose, `defer_prefill` has deferral and skipping act in prefill too. From
    `device_prefill_tokens` tokens a pass on, packed experts stream to a CUDA device, which multiplies them; `auto` is
    the crossover of the machine, 0 leaves all to the host. `own` has the values of features from outside, be they of a
    package or of the file `own_file`, whose digest is `own_id`. `handover` is how a CUDA device has the host run
    experts: by functions that the driver calls, or by flags in memory that both see. `static_batch` requests are served
    at a time, until all of them are done, within the limits of `serving`.
    """

    avx2: bool = False
    avx512: bool = False
    amx: bool = False
    dynamic: bool = False
    numa: bool = False
    cuda_graph: bool = False
    packed_dense: bool = False
    deferral: int | Literal["auto"] = 0
    skipping: int = 0
    defer_prefill: Annotated[bool, Meta(description="deferral and skipping act in prefill, too")] = False
    device_prefill_tokens: int | Literal["auto"] = 0
    handover: Handover = "host_function"
    batching: bool = False
    chunked_prefill: bool = False
    prefix_cache: bool = False
    static_batch: int = 0
    own: Annotated[
        dict[str, FeatureValue], Meta(description="features of your own with their values: {low_gate: 0.1}")
    ] = field(default_factory=dict, hash=False)
    own_file: Annotated[str | None, Meta(description="the Python file that has them")] = None
    own_id: str = ""
    amx_min_tokens: (
        Annotated[int, Meta(ge=1, description="with +v and +m: AMX from so many tokens per expert")] | Literal["auto"]
    ) = "auto"
    threads: Annotated[int, Meta(ge=1, description="cores of both roles together; null: all")] | None = None
    domains: Annotated[int, Meta(ge=2, description="parts of +n; null: one for each NUMA node")] | None = None
    device: Annotated[Device, Meta(description="where all but the routed experts runs")] = "cpu"
    roles: Annotated[Roles, Meta(description="split: host and device role on cores of their own")] = "shared"
    device_threads: Annotated[int, Meta(ge=1, description="of these, cores of the device role; null: half")] | None = (
        None
    )
    placement: PlacementSpec = field(default_factory=PlacementSpec)
    serving: ServingSpec = field(default_factory=ServingSpec)

    def __post_init__(self) -> None:
        if self.avx2 and (self.avx512 or self.amx):
            raise ValueError("engine.avx2=true: excludes engine.avx512=true and engine.amx=true, set one or the others")
        object.__setattr__(self, "own", {name: value for name, value in self.own.items() if not _is_off(name, value)})
        for feature, value in self.on:
            self._check_requires(feature, value)
        for feature, value in self.values:
            if not feature.is_own and feature.counts and isinstance(value, int):
                at_least(feature.key, value, 0)
        if self.deferral and self.skipping:
            raise ValueError("engine.deferral and engine.skipping exclude each other: set one of them to 0")
        check_ranges(self, "engine")
        self._check_roles()
        self._check_serving()

    def _check_requires(self, feature: Feature, value: FeatureValue) -> None:
        if feature.is_own:
            return  # a log may be of another version of it; requests are held against its limits
        if feature.requires and not any(getattr(self, other) for other in feature.requires):
            needed = " or ".join(f"engine.{other}=true" for other in feature.requires)
            raise ValueError(f"{feature.key}={value}: {feature.title} needs {needed}")

    def _check_roles(self) -> None:
        if self.device == "cuda" and self.roles == "split":
            raise ValueError("engine.roles=split: with engine.device=cuda the roles are separate, leave it shared")
        if self.device_threads is not None and self.roles == "shared":
            raise ValueError(f"engine.device_threads={self.device_threads}: needs engine.roles=split")
        if self.placement.policy != "host" and not self.roles_concurrent:
            raise ValueError(
                f"engine.placement.policy={self.placement.policy}: on shared cores nothing is gained, "
                "set engine.roles=split or engine.device=cuda"
            )

    def _check_serving(self) -> None:
        if self.batching and self.static_batch:
            raise ValueError(f"engine.batching=true: excludes engine.static_batch={self.static_batch}, set one of them")
        if self.static_batch > self.serving.max_sequences:
            raise ValueError(
                f"engine.static_batch={self.static_batch}: allowed are up to "
                f"engine.serving.max_sequences={self.serving.max_sequences}"
            )

    def with_features(self, values: Mapping[str, FeatureValue]) -> EngineSpec:
        """The same with other values of features, by feature name."""
        own = {name: value for name, value in values.items() if BY_NAME[name].is_own}
        ours: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
        return replace(self, own={**self.own, **own}, **ours)

    def without(self, is_left_out: Callable[[Feature], bool]) -> EngineSpec:
        """The same with some features off."""
        off = {feature.name: feature.off for feature, _ in self.on if is_left_out(feature)}
        return self.with_features(off) if off else self

    @property
    def without_serving(self) -> EngineSpec:
        """The same without the features that act where requests are served."""
        return self.without(lambda feature: feature.serving)

    @property
    def without_routing(self) -> EngineSpec:
        """The same where all of a token's experts run, at once."""
        return self.without(lambda feature: feature.routes)

    @property
    def values(self) -> tuple[tuple[Feature, FeatureValue], ...]:
        """Every feature with its value, in table order."""
        return tuple(
            (one, self.own.get(one.name, one.off) if one.is_own else getattr(self, one.name)) for one in FEATURES
        )

    @property
    def on(self) -> tuple[tuple[Feature, FeatureValue], ...]:
        """Those that are on."""
        return tuple((feature, value) for feature, value in self.values if value != feature.off)

    @property
    def routes(self) -> tuple[tuple[Feature, FeatureValue], ...]:
        """Those of them that decide which of a token's experts run when."""
        return tuple((feature, value) for feature, value in self.on if feature.routes)

    @property
    def alters_outputs(self) -> bool:
        """Whether logits are others on purpose."""
        return any(feature.alters_outputs for feature, _ in self.on)

    @property
    def alters_experts(self) -> bool:
        """Whether outputs of single experts calls are."""
        return any(feature.alters_experts for feature, _ in self.on)

    @property
    def records_steps(self) -> bool:
        """Whether steps are recorded where they can be: not where a feature from outside decides anew in each."""
        recordable = all(feature.recordable for feature, _ in self.on if feature.is_own)
        return (self.packed_dense or self.cuda_graph) and recordable

    @property
    def roles_concurrent(self) -> bool:
        """Whether host and device role work at the same time."""
        return self.device == "cuda" or self.roles == "split"

    @property
    def features(self) -> dict[str, FeatureValue]:
        """Feature values by feature name, in table order; last those from outside that are on."""
        return {feature.name: value for feature, value in self.values if not feature.is_own} | self.own

    @property
    def fused(self) -> bool:
        """Whether the routed experts run in the fused operator."""
        return self.avx2 or self.avx512 or self.amx

    @property
    def hybrid(self) -> bool:
        """Whether an expert's tokens decide between AVX-512 and AMX."""
        return self.avx512 and self.amx

    @property
    def first_on_amx(self) -> float:
        """The least tokens of an expert that runs on AMX, infinite without +m; the paper's threshold for `auto`."""
        if not self.amx:
            return inf
        if not self.avx512:
            return 0
        return PAPER_AMX_MIN_TOKENS if self.amx_min_tokens == "auto" else self.amx_min_tokens

    @property
    def isa(self) -> str | None:
        """The instruction set whose arithmetic peak bounds the experts; None where PyTorch chooses it."""
        return next((name for name in ("amx", "avx512", "avx2") if getattr(self, name)), None)

    @property
    def label(self) -> str:
        """How labels write the features: `base`, `+v+d`."""
        return features_label(self.features)


def _is_off(name: str, value: FeatureValue) -> bool:
    return name in BY_NAME and value == BY_NAME[name].off


def deferral_candidates(top_k: int) -> range:
    """The numbers of deferred experts to choose from: 0 to `top_k` - MIN_IMMEDIATE_EXPERTS, always 0 at least."""
    return range(max(top_k - MIN_IMMEDIATE_EXPERTS, 0) + 1)


def choose_deferral(busy_shares: Sequence[float]) -> int:
    """The smallest number of deferred experts whose host busy share is at least 0.97 of the largest.

    `busy_shares[n]` is the share of a step in which the host role runs experts, with n of them deferred; one entry for
    each of `deferral_candidates`. Raises ValueError where it is empty.
    """
    if not busy_shares:
        raise ValueError("no busy shares to choose from")
    enough = _AS_BUSY * max(busy_shares)
    return next(number for number, share in enumerate(busy_shares) if share >= enough)


def seen_features(engine: EngineSpec, streamed: int, passes: int) -> dict[str, FeatureValue]:
    """What evidence is to show where so many of the passes of a step stream their experts to the device.

    The host's kernels have nothing to do where all do, and `auto` may choose that none does.
    """
    if engine.device_prefill_tokens == "auto" and not streamed:
        return {"device_prefill_tokens": 0}
    idle: dict[str, FeatureValue] = {**dict.fromkeys((*FUSED, "dynamic"), False), "handover": BY_NAME["handover"].off}
    return idle if streamed == passes else {}


def all_features(engine: EngineSpec, missing: Mapping[str, str], *, phase: str, device: Device) -> EngineSpec:
    """An engine with every feature on that is best in a phase on a device and that its machine has; others stay.

    `missing` has the reason why a feature is not there by its name, empty for one that is. Without a fused operator
    only those of serving are best.
    """
    fused = not all(missing[name] for name in FUSED)

    def has(feature: Feature, best: Best) -> bool:
        acts = phase in best.phases and best.device in (None, device) and (fused or feature.serving)
        return acts and not missing[feature.name] and all(missing[name] for name in best.unless)

    return engine.with_features({one.name: has(one, one.best) for one in FEATURES if one.best})
