"""The arms of a sweep that names none: those of its design, or of its lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, get_args

from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import OURS, system_label
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import Design, DesignKind, SweepSpec
from ktbench.spec.wire import from_plain, to_plain

# An arm sets these and all features, so that they cannot be axes beside arms.
_OF_ARMS = ("system", "peer.implementation")


def derive_arms(sweep: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The plain content of a sweep with arms, a baseline, a title and a figure where it has axes and no arms.

    A design makes arms of its features. Otherwise lists of systems and of features do; without any, the only arm is the
    label of `spec`, the plain content of a RunSpec. Raises ValueError where arms and axes set the same key, and for an
    invalid design or spec.
    """
    sweep = _designed(sweep)
    axes = sweep["axes"]
    if not isinstance(axes, dict) or not all(isinstance(values, list) for values in axes.values()):
        return dict(sweep)
    of_arms = {*_OF_ARMS, *(feature.key for feature in FEATURES)}
    named = {key: values for key, values in axes.items() if key in of_arms}
    if sweep["arms"] and named:
        raise ValueError(f"{next(iter(named))}: is set by the arms of the sweep, name what to compare in sweep.arms")
    if sweep["arms"] or sweep["parts"] or not axes:
        return dict(sweep)
    rest = {key: values for key, values in axes.items() if key not in named}
    arms = list(dict.fromkeys(_label(spec, dict(zip(named, point, strict=True))) for point in product(*named.values())))
    return {**sweep, "arms": arms, "axes": rest, **_shown(sweep, arms, rest, spec)}


def _designed(sweep: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sweep with the arms of its design; an invalid one, or one with arms, is left for the spec to refuse."""
    kind, features, baseline = (sweep[key] for key in ("design", "features", "baseline"))
    words = [*features, baseline] if isinstance(features, list) else [None]
    if kind not in get_args(DesignKind) or sweep["arms"] or not all(isinstance(word, str) for word in words):
        return sweep
    plain = to_plain(SweepSpec())
    ours = {
        "title": f"{', '.join(features)}: {kind.replace('_', ' ')}",
        "figure": "interactions" if kind == "factorial" else "waterfall",
    }
    shown = {key: value for key, value in ours.items() if sweep[key] == plain[key]}
    arms = Design(kind=kind, features=tuple(features), baseline=baseline).arms
    return {**sweep, "arms": list(arms), **shown}


def _label(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    system = changes.get("system", spec["system"])
    if system != OURS:
        return system_label(system, changes.get("peer.implementation", spec["peer"]["implementation"]))
    ours = from_plain({**spec, "system": system}, RunSpec)
    values = {feature.name: changes[feature.key] for feature in FEATURES if feature.key in changes}
    return from_plain(to_plain(ours.engine.with_features(values)), EngineSpec).label


def _shown(sweep: Mapping[str, Any], arms: Sequence[str], axes: Mapping[str, Any], spec: Any) -> dict[str, str]:
    """Baseline, title and figure unless overridden; bars of a single arm would all have the same height."""
    plain = to_plain(SweepSpec())
    over = f" over {', '.join(key.rpartition('.')[2] for key in axes)}" if axes else ""
    numbers = any(all(type(value) in (int, float) for value in values) for values in axes.values())
    curves = "throughput" if spec["workload"]["phase"] == "layer" else "depth"
    ours = {
        "baseline": arms[0],
        "title": ", ".join(arms) + over,
        "figure": curves if numbers and len(arms) == 1 else plain["figure"],
    }
    return {key: value for key, value in ours.items() if sweep[key] == plain[key]}
