"""What a sweep varies: arms by their labels, axes, and designs over features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Meta

from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import check_ranges, did_you_mean, repeated, require_name
from ktbench.spec.features import BY_NAME, FUSED, FeatureValue, features_label, parse_features
from ktbench.spec.peers import BY_NAME as BY_PEER
from ktbench.spec.peers import IMPLEMENTATION_OWN, IMPLEMENTATIONS, OURS
from ktbench.spec.serving.stream import SAMPLED, Start
from ktbench.spec.weights import Precision

T = TypeVar("T")
Word = TypeVar("Word", bound=str)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
STARTS: tuple[Start, ...] = get_args(Start)
START_KEY = "workload.stream.cache"
TEMPERATURE_KEY = "workload.stream.temperature"
_SAMPLED_AT = 1.0  # the temperature that clients of OpenAI's API have where they name none


def arm_changes(arm: str) -> dict[str, bool | int | float | str]:
    """Spec changes by dotted key of an arm: `base`, `+v+d`, `+v int8`, `llama.cpp`, `transformers eager`, `+v+p warm`,
    `+v+b sampled`.

    Every feature and the system are set, `precision`, what the prefix cache has at the begin and that tokens are drawn
    where they are named.
    Raises ValueError in one line for an unknown word, for a second one of a kind, and for a precision that no operator
    of the arm would have.
    """
    named: dict[str, str | float | None] = {"precision": arm_precision(arm), START_KEY: arm_start(arm)}
    named[TEMPERATURE_KEY] = _SAMPLED_AT if is_sampled(arm) else None
    changes: dict[str, bool | int | float | str] = {
        BY_NAME[name].key: value for name, value in arm_features(arm).items()
    }
    changes |= _system_changes(arm)
    return changes | {key: value for key, value in named.items() if value is not None}


def _system_changes(arm: str) -> dict[str, str]:
    system = arm_peer(arm) or OURS
    named = [word for word in arm.split() if word in (*IMPLEMENTATIONS, IMPLEMENTATION_OWN)]
    if len(named) > (system == "transformers"):
        raise ValueError(f"arm {arm!r}: {named[-1]} goes with transformers, once")
    return {"system": system} | ({"peer.implementation": named[0]} if named else {})


def arm_peer(arm: str) -> str | None:
    """The peer that an arm names; None for our own engine. Raises ValueError where it names two."""
    named = [word for word in arm.split() if word in BY_PEER]
    if len(named) > 1:
        raise ValueError(f"arm {arm!r}: names {len(named)} systems, allowed is one")
    return named[0] if named else None


def arm_features(arm: str) -> dict[str, FeatureValue]:
    """Feature values of an arm by feature name. Raises ValueError naming the unknown word and the allowed ones."""
    known = {*PRECISIONS, *STARTS, SAMPLED, *BY_PEER, *IMPLEMENTATIONS, IMPLEMENTATION_OWN}
    words = " ".join(word for word in arm.split() if word not in known)
    if words and arm_peer(arm):
        raise ValueError(f"arm {arm!r}: {arm_peer(arm)} has none of our features, leave out {words}")
    try:
        return parse_features(words)
    except ValueError as error:
        allowed = ", ".join((*PRECISIONS, *STARTS, SAMPLED, *sorted(BY_PEER)))
        hint = next(filter(None, (did_you_mean(word, known, cutoff=0.7) for word in words.split())), "")
        raise ValueError(f"arm {arm!r}{hint}: {error}, one of {allowed}") from None


def arm_precision(arm: str) -> Precision | None:
    """The precision that an arm names; None where it leaves that to the spec. Raises ValueError as `arm_changes`."""
    named = _named(arm, PRECISIONS, "precisions")
    features = arm_features(arm)
    if named and named != "bf16" and not (any(features[name] for name in FUSED) or arm_peer(arm)):
        raise ValueError(f"arm {arm!r}: {named} needs +a, +v or +m, without them the experts run in bf16")
    return named


def arm_start(arm: str) -> Start | None:
    """What the prefix cache has at the begin, by an arm that names it; None where it leaves that to the spec."""
    named = _named(arm, STARTS, "states of the prefix cache")
    if named and not arm_features(arm)["prefix_cache"]:
        raise ValueError(f"arm {arm!r}: {named} needs +p, without it nothing is kept")
    return named


def is_sampled(arm: str) -> bool:
    """Whether an arm says that tokens are drawn; otherwise it leaves that to the spec."""
    return _named(arm, (SAMPLED,), f"times {SAMPLED}") is not None


def _named(arm: str, words: Sequence[Word], what: str) -> Word | None:
    found = [known for word in arm.split() for known in words if word == known]
    if len(found) > 1:
        raise ValueError(f"arm {arm!r}: names {len(found)} {what}, allowed is one")
    return found[0] if found else None


DesignKind = Literal["ladder", "leave_one_out", "factorial"]

MOST_FEATURES = 6  # 64 combinations


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """An arm that a design would have and that no machine can run, and why."""

    arm: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """Arms made of `features` on top of `baseline`, each in the words of labels: `+v`, `deferral=3`, `+v+d` as one.

    ladder: one more at a time, in their order. leave_one_out: none, all, and all without each. factorial: every
    combination. One that `EngineSpec` refuses (+d without +a, +v or +m, deferral with skipping) is dropped; what only
    this machine or this work rules out stays an arm, and its row says why it could not run. Raises ValueError in one
    line for an unknown feature, one that is there twice, too many of them, and features that cannot all be on together.
    """

    kind: DesignKind
    features: tuple[str, ...]
    baseline: str = "base"

    def __post_init__(self) -> None:
        if not self.features:
            raise ValueError(f"sweep.design={self.kind}: needs sweep.features, such as [+v,+d]")
        seen = dict.fromkeys(_on("sweep.baseline", self.baseline), self.baseline)
        for feature in self.features:
            found = _on("sweep.features", feature)
            if not found:
                raise ValueError(f"sweep.features: {feature!r} turns nothing on")
            if twice := [name for name in found if name in seen]:
                raise ValueError(
                    f"sweep.features: {feature!r} and {seen[twice[0]]!r} both set {BY_NAME[twice[0]].title}"
                )
            seen |= dict.fromkeys(found, feature)
        if self.kind == "factorial" and len(self.features) > MOST_FEATURES:
            raise ValueError(
                f"sweep.features: a factorial of {len(self.features)} has {2 ** len(self.features)} combinations, "
                f"allowed are {MOST_FEATURES} features; take fewer, or sweep.design=leave_one_out"
            )
        if why := self._refusal(self.features):
            raise ValueError(f"sweep.features: they cannot all be on together: {why}")

    @property
    def arms(self) -> tuple[str, ...]:
        """Labels of the possible combinations, the baseline first."""
        return tuple(self._label(chosen) for chosen in self._combinations() if not self._refusal(chosen))

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The impossible combinations, in the order of the design."""
        found = ((self._label(chosen), self._refusal(chosen)) for chosen in self._combinations())
        return tuple(Dropped(arm=label, why=why) for label, why in found if why)

    def _combinations(self) -> Iterator[tuple[str, ...]]:
        count = len(self.features)
        if self.kind == "ladder":
            yield from (self.features[:n] for n in range(count + 1))
        elif self.kind == "factorial":
            yield from (chosen for n in range(count + 1) for chosen in combinations(self.features, n))
        else:
            ones = [tuple(one for one in self.features if one != left) for left in self.features]
            yield from dict.fromkeys([(), self.features, *ones])

    def _label(self, chosen: Sequence[str]) -> str:
        return features_label(self._values(chosen)) if chosen else self.baseline

    def _values(self, chosen: Sequence[str]) -> dict[str, FeatureValue]:
        values = parse_features(self.baseline)
        for feature in chosen:
            values |= _on("sweep.features", feature)
        return values

    def _refusal(self, chosen: Sequence[str]) -> str:
        """Why no engine has the combination; empty where it can be built."""
        try:
            EngineSpec().with_features(self._values(chosen))
        except ValueError as error:
            return str(error)
        return ""


def _on(where: str, label: str) -> dict[str, FeatureValue]:
    """Features that a label turns on, by name. Raises ValueError, headed by `where`, for an unknown word."""
    try:
        values = parse_features(label)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return {name: value for name, value in values.items() if value != BY_NAME[name].off}


FigureKind = Literal[
    "bars", "throughput", "latency", "roles", "depth", "paper", "accuracy", "deferral_accuracy", "precision_accuracy",
    "frontier", "waterfall", "interactions", "serving", "interactivity", "learning",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureStyle:
    """How figures and tables of a run are set; what is None or empty is as it comes.

    `width` and `height` are inches, of a figure without its caption; `font` is the name of an installed family, `size`
    its points. `labels` has other words for a label: of an arm, an axis, a heading. `order` is that of arms, by label:
    those that it leaves out follow in theirs.
    """

    width: Annotated[float | None, Meta(description="of figures, in inches")] = None
    height: Annotated[float | None, Meta(description="of figures without title and caption, in inches")] = None
    font: Annotated[str, Meta(description="an installed family")] = ""
    size: Annotated[float | None, Meta(description="points of letters in figures")] = None
    labels: Annotated[dict[str, str], Meta(description="other words for labels and headings")] = field(
        default_factory=dict
    )
    order: Annotated[tuple[str, ...], Meta(description="of arms in figures and tables")] = ()

    def __post_init__(self) -> None:
        for name, (least, most) in _STYLE_RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}={value:g}: from {least:g} to {most:g}")

    def over(self, other: FigureStyle) -> FigureStyle:
        """What is set here, and what is left open as another style has it."""
        labels = other.labels | self.labels
        return FigureStyle(
            width=self.width or other.width,
            height=self.height or other.height,
            font=self.font or other.font,
            size=self.size or other.size,
            labels=labels,
            order=self.order or other.order,
        )

    def text(self, label: str) -> str:
        """What stands in place of a label."""
        return self.labels.get(label, label)

    def ordered(self, items: Iterable[T], label: Callable[[T], str]) -> list[T]:
        """Items in the order of their labels."""
        places = {name: place for place, name in enumerate(self.order)}
        return sorted(items, key=lambda item: places.get(label(item), len(places)))


_STYLE_RANGES = {"width": (2.5, 20.0), "height": (0.8, 30.0), "size": (4.0, 20.0)}
NO_STYLE = FigureStyle()


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """Arms in the order of the table (see `arm_changes`); `axes` maps spec keys to the values each arm is run at.

    A value of an axis may be a mapping of spec keys, where others go with the axis' own:
    `workload.batch: [1, {workload.batch: 512, workload.steps: 2}]`. With `control` the baseline rides along a second
    time under its own name. `parts` names other ablations that are measured together, each with arms and axes of its
    own; a part is called after the last word of its name. `published` names files of `reports/published` whose numbers
    are shown beside the cells that they are about, or the panel of one alone (`fig14a`); without arms they are all that
    is shown. The figure `paper` draws them; `style` sets figures and tables. With a `design` the arms are those that it
    makes of `features` on top of the baseline (see `Design`). Every arm is planned `copies` more times, each copy with
    weights of its own in memory, which shows how often equal cells are called unequal.
    """

    name: Annotated[str, Meta(description="how the run is called")] = "run"
    title: Annotated[str, Meta(description="what figures are called")] = ""
    arms: Annotated[tuple[str, ...], Meta(description="what is compared: [base,+v,+v+d]")] = ()
    baseline: Annotated[str, Meta(description="the arm that speed-ups refer to")] = "base"
    axes: Annotated[dict[str, tuple[Any, ...]], Meta(description="keys and the values that arms run at")] = field(
        default_factory=dict
    )
    control: Annotated[bool, Meta(description="measure the baseline twice (A/A)")] = True
    copies: Annotated[int, Meta(ge=0, description="further copies of each arm, to see noise")] = 0
    figure: Annotated[FigureKind, Meta(description="what is drawn")] = "bars"
    style: FigureStyle = NO_STYLE
    parts: Annotated[tuple[str, ...], Meta(description="ablations that are measured together")] = ()
    published: Annotated[tuple[str, ...], Meta(description="files of published numbers")] = ()
    design: Annotated[DesignKind | None, Meta(description="makes arms of sweep.features")] = None
    features: Annotated[tuple[str, ...], Meta(description="for a design: [+v,+d]")] = ()

    def __post_init__(self) -> None:
        require_name("sweep.name", self.name)
        self._check_design()
        check_ranges(self, "sweep")
        for arm in self.arms:
            arm_changes(arm)
        if twice := repeated(self.arms):
            raise ValueError(f"sweep.arms: {twice!r} is there twice")
        if self.arms and self.baseline not in self.arms:
            raise ValueError(f"sweep.baseline={self.baseline!r} is none of sweep.arms={list(self.arms)}")
        for key, values in self.axes.items():
            _check_axis(key, values)
        if self.figure == "paper" and not self.published:
            raise ValueError("sweep.figure=paper: draws published numbers, name them in sweep.published")
        self._check_parts()

    def _check_design(self) -> None:
        if self.design is None and self.features:
            raise ValueError(f"sweep.features={list(self.features)}: needs sweep.design, such as factorial")
        if self.design is not None and self.arms != self._designed(self.design).arms:
            raise ValueError(f"sweep.design={self.design}: makes the arms of sweep.features, set sweep.arms=[]")

    def _designed(self, kind: DesignKind) -> Design:
        return Design(kind=kind, features=self.features, baseline=self.baseline)

    def _check_parts(self) -> None:
        if self.parts and (self.arms or self.axes):
            raise ValueError("sweep.parts: each part has arms and axes of its own, leave out sweep.arms and sweep.axes")
        if self.axes and not self.arms and not self.parts:
            raise ValueError(f"sweep.axes={list(self.axes)}: needs sweep.arms, such as [base,+v]")
        if twice := repeated([part_name(part) for part in self.parts]):
            raise ValueError(f"sweep.parts: two parts are called {twice}")

    @property
    def is_published_alone(self) -> bool:
        """Whether there is nothing to run: numbers are shown that no cell is about."""
        return bool(self.published) and not self.arms

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Combinations of the design that no machine can run."""
        return () if self.design is None else self._designed(self.design).dropped

    @property
    def points(self) -> tuple[dict[str, Any], ...]:
        """Spec changes by dotted key at every point of the axes, the last axis varying fastest."""
        axes = [[axis_changes(key, value) for value in values] for key, values in self.axes.items()]
        return tuple({key: value for changes in point for key, value in changes.items()} for point in product(*axes))


def on_avx2(sweep: SweepSpec) -> SweepSpec:
    """The sweep with +a in place of +v and +m, for a machine that has neither; what is then there twice, once."""
    ours, *others = (BY_NAME[name].mark for name in FUSED)
    return _relettered(sweep, lambda letter: ours if letter in others else letter)


def without_packing(sweep: SweepSpec) -> SweepSpec:
    """The sweep without +l, for a device that has no such layers; what is then there twice, once."""
    packing = BY_NAME["packed_dense"].mark
    return _relettered(sweep, lambda letter: "" if letter == packing else letter)


def _relettered(sweep: SweepSpec, change: Callable[[str], str]) -> SweepSpec:
    """The sweep with each letter of its labels changed, such as `+v`."""

    def changed(words: str) -> str:
        found = []
        for word in words.split(" "):
            letters = [f"+{letter}" for letter in word.split("+")[1:]] if word.startswith("+") else []
            found.append("".join(dict.fromkeys(map(change, letters))) if letters else word)
        return " ".join(filter(None, found))

    features = tuple(dict.fromkeys(filter(None, map(changed, sweep.features))))
    arms, baseline = dict.fromkeys(map(changed, sweep.arms)), changed(sweep.baseline)
    if sweep.design is not None:
        arms = dict.fromkeys(Design(kind=sweep.design, features=features, baseline=baseline).arms)
    return replace(sweep, arms=tuple(arms), baseline=baseline, features=features)


def axis_changes(key: str, value: Any) -> dict[str, Any]:
    """Spec changes by dotted key that one value of the axis `key` stands for."""
    return dict(value) if isinstance(value, Mapping) else {key: value}


def part_name(ablation: str) -> str:
    """What the part made of an ablation is called: its name without the folder, of a file without its ending."""
    return ablation.rpartition("/")[2].removesuffix(".yaml")


_RELOADS = "measure.reload_blocks"


def _check_axis(key: str, values: tuple[Any, ...]) -> None:
    if not values:
        raise ValueError(f"sweep.axes.{key} has no values")
    for value in values:
        if _RELOADS in axis_changes(key, value):
            raise ValueError(f"sweep.axes.{key}: {_RELOADS} is the same for all cells of a run, it is no axis")
        if key not in axis_changes(key, value):
            raise ValueError(f"sweep.axes.{key}: the mapping {dict(value)} must set {key} too")
