"""Freezes composed content into specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ktbench.config.arms import derive_arms
from ktbench.config.axes import default_device, mapped_axes
from ktbench.config.compose import Composed
from ktbench.config.inject import freeze_inject, show_only
from ktbench.config.lists import PRECISION_KEYS, WHOLE_GROUPS, precision_name
from ktbench.config.machine import freeze_machine
from ktbench.resources import checkpoint_name
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError, require_name
from ktbench.spec.features import FEATURES, features_label
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS, require_system
from ktbench.spec.record import LATEST
from ktbench.spec.run_spec import MeasureSpec, RunSpec
from ktbench.spec.shape import MoEShape, moe_shape, sliced_config, with_experts
from ktbench.spec.suite import SuiteSpec, only
from ktbench.spec.sweep import SweepSpec, axis_changes
from ktbench.spec.weights import StoredLayer
from ktbench.spec.wire import from_plain, to_plain

_VOCAB_MULTIPLE = 64
_BEST, _DEVICE = "best", "engine.device"
_NATIVE = "native"  # a precision: as the weights are stored
# Features that pack the weights of a precision.
_PACKING = {"precision": ("avx2", "avx512", "amx"), "device_precision": ("packed_dense",)}
_WORK_KEYS = ("phase", "routing", "trace")
_MODEL_KEYS = ("name", "layers", "experts", "vocab", "seed", "path", "config")
_SPEC = (*WHOLE_GROUPS, "workload", "engine", "system", "peer")
Content = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """What files that requests name say of models.

    `checkpoints` has the configuration of each checkpoint by its `model.path`, `configs` the name and the configuration
    of each `model.config=FILE` by that, `stored` by either the formats of the weights by the keys of precisions, for
    `native`, `layers` by `model.path` the MoE layers as they are stored.
    """

    checkpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    configs: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    stored: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    layers: Mapping[str, Sequence[StoredLayer]] = field(default_factory=dict)

    def named(self, model: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and whole configuration of the node of a model."""
        if (path := model["path"]) is not None:
            return checkpoint_name(str(path)), dict(self.checkpoints[path])
        if (file := config_file(model)) is not None:
            name, config = self.configs[file]
            return name, dict(config)
        return model["name"], dict(model["config"])


def _require_keys(group: str, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raises ValueError for what a preset of a group lacks."""
    if missing := [key for key in keys if key not in content]:
        raise ValueError(f"{group}: the key {missing[0]} is missing")


def config_file(model: Mapping[str, Any]) -> str | None:
    """The file that `model.config=FILE` names, of the node of a model; None where the facts themselves are there.

    Raises ValueError for what names none, and beside a checkpoint, which has its own; for a `path` that is no name.
    """
    _require_keys("model", model, _MODEL_KEYS)
    config, path = model["config"], model["path"]
    if path is not None and not isinstance(path, str):
        raise ValueError(f"model.path={path}: must be the name of a folder or a file, or null")
    if isinstance(config, dict):
        return None
    if not isinstance(config, str) or not config:
        raise ValueError(f"model.config={config}: name a config.json")
    if path is not None:
        raise ValueError(f"model.config={config}: model.path={path} has a configuration of its own, leave out one")
    return config


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestPart:
    """One ablation of a request: the spec that its arms and axes change. The only part of a request is called ""."""

    name: str
    spec: RunSpec
    sweep: SweepSpec

    @property
    def title(self) -> str:
        """The title of the ablation; without one its name, or the features of a single cell."""
        return self.sweep.title or (self.sweep.name if self.sweep.arms else self.spec.label)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A complete request. `sweep` has the run's name, title and parts, which are measured together.

    `suite` is the suite to evaluate, if any; `show`: only show what the injection rules replace; `wait` until no other
    process is timing; `notice` is a line about what the machine made of the request.
    """

    sweep: SweepSpec
    measure: MeasureSpec
    parts: tuple[RequestPart, ...]
    suite: SuiteSpec | None
    show: bool
    resume: str | None
    resume_changed: bool
    run_name: str | None
    wait: bool = False
    notice: str = ""

    def __post_init__(self) -> None:
        if self.run_name is not None:
            require_name("run_name", self.run_name)
            if self.run_name == LATEST:
                raise ValueError(f"run_name={LATEST}: stands for the run that was started last, change the name")
        if self.show and self.is_sweep:
            raise ValueError("inject.show=true: shows the modules of one cell, leave out the ablation")

    @property
    def title(self) -> str:
        """Title of the run: its own, else that of its only part."""
        return self.sweep.title or (self.sweep.name if self.sweep.parts else self.parts[0].title)

    @property
    def is_timed(self) -> bool:
        """Whether steps are timed; in an evaluation only where the figure shows speed beside the score."""
        return self.suite is None or any(part.sweep.figure == "frontier" for part in self.parts)

    @property
    def is_sweep(self) -> bool:
        """Whether the request has more than a single cell."""
        return bool(self.sweep.parts) or any(part.sweep.arms or part.sweep.published for part in self.parts)


# An engine with every feature that a machine (None: this one) has and that acts in a phase of a workload.
Best = Callable[[EngineSpec, MachineSpec | None, str], EngineSpec]


def _no_best(engine: EngineSpec, machine: MachineSpec | None, phase: str) -> EngineSpec:
    raise ValueError("engine.best=true: which features a machine has is not known here")


def freeze(composed: Composed, files: ModelFiles | None = None, best: Best = _no_best) -> Request:
    """Specs of composed content.

    `files` has what every `model.path` and `model.config=FILE` names, `best` gives the features of `engine.best=true`.
    Raises RequestError with the first value that a spec refuses.
    """
    run = {key: composed.run[key] for key in ("measure", "resume", "resume_changed", "run_name", "wait")}
    try:
        contents = fill_trace(composed.parts)
        files = files or ModelFiles()
        parts = tuple(_part(name, content, run["measure"], files, best) for name, content in contents.items())
        run["sweep"] = composed.run["sweep"] if composed.run["sweep"]["parts"] else parts[0].sweep
        run |= {"suite": suite_of(composed), "show": show_only(composed.run["inject"])}
        return from_plain(run | {"parts": parts}, Request)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _part(name: str, content: Mapping[str, Any], measure: Any, files: ModelFiles, best: Best) -> RequestPart:
    source = config_file(content["model"]) or content["model"]["path"]
    content = _with_best(default_device(_with_specs(content, files)), best)
    stored = {} if source is None else files.stored.get(source, {})
    given = {key: content[key] for key in _SPEC} | {key: _precision(key, content, stored) for key in PRECISION_KEYS}
    plain = {"measure": measure, "inject": freeze_inject(content["inject"])} | given
    require_system(plain["system"])
    sweep = derive_arms(content["sweep"], plain)
    if sweep["arms"] and not content["sweep"]["arms"]:
        plain["system"] = OURS  # each arm names its own, and features belong to ktbench
    return from_plain({"name": name, "spec": from_plain(plain, RunSpec), "sweep": sweep}, RequestPart)


def _with_best(content: Mapping[str, Any], best: Best) -> dict[str, Any]:
    """The content with the features that `engine.best=true`, and the word `best` of an arm, stand for.

    Raises ValueError where arms name all features, and where a machine or a device is varied, which have others each.
    """
    engine, sweep = dict(content["engine"]), content["sweep"]
    wanted = engine.pop("best")
    if not isinstance(wanted, bool):
        raise ValueError(f"engine.best={wanted}: allowed are true and false")
    words = [arm.split() for arm in (*_listed(sweep["arms"]), sweep["baseline"]) if isinstance(arm, str)]
    is_arm = any(_BEST in arm for arm in words)
    if not (wanted or is_arm):
        return {**content, "engine": engine}
    if wanted and (sweep["arms"] or sweep["features"]):
        raise ValueError("engine.best=true: arms name all features; the word best is an arm: sweep.arms=[base,best]")
    axes = sweep["axes"] if isinstance(sweep["axes"], dict) else {}
    if varied := next((key for key in ("machine", _DEVICE) if key in axes), None):
        raise ValueError(f"{'engine.best=true' if wanted else 'arm best'}: {varied} is varied, run once for each value")
    require_system(content["system"])
    machine = content["machine"] and from_plain(content["machine"], MachineSpec)
    chosen = best(from_plain(engine, EngineSpec), machine, content["workload"]["phase"]).features
    if content["model"]["packed"] is not None:
        chosen = {**chosen, "numa": False}  # what is mapped is not split over domains
    best_values = {one.name: chosen[one.name] for one in FEATURES if one.best}
    if wanted and (content["system"] == OURS or "system" in axes):
        engine |= best_values
    label = features_label(best_values)
    named = {
        "arms": [_named(arm, label) for arm in sweep["arms"]] if is_arm else sweep["arms"],
        "baseline": _named(sweep["baseline"], label),
    }
    return {**content, "engine": engine, "sweep": {**sweep, **named}}


def _listed(value: Any) -> list[Any]:
    """A list, or nothing where something else stands in its place, which a spec refuses."""
    return value if isinstance(value, list) else []


def _named(arm: Any, label: str) -> Any:
    """An arm with the label of the best features in place of the word."""
    return " ".join(label if word == _BEST else word for word in arm.split(" ")) if isinstance(arm, str) else arm


def _precision(key: str, content: Mapping[str, Any], stored: Mapping[str, str]) -> Any:
    """The precision that a key names; `native` is that of the weights where they are packed, else bf16."""
    if content[key] != _NATIVE:
        return precision_name(content[key])
    sweep, engine = content["sweep"], content["engine"]
    packs = any(engine[name] for name in _PACKING[key]) or sweep["arms"] or sweep["features"]
    return stored.get(key, "bf16") if packs else "bf16"


def _with_specs(content: Mapping[str, Any], files: ModelFiles) -> dict[str, Any]:
    """The content with plain specs in place of the nodes of models and machines, on axes too."""
    axes, phase = content["sweep"]["axes"], content["workload"]["phase"]
    varied = frozenset(axes) if isinstance(axes, dict) else frozenset()

    def frozen(key: str, value: Any) -> Any:
        if key == "machine":
            return freeze_machine(value, varied)
        if key == "model":
            return freeze_model(value, files, phase=phase) | {
                "packed": _packed(value, phase),
                "adapter": value["adapter"],
            }
        return value

    groups = {key: frozen(key, content[key]) for key in WHOLE_GROUPS}
    axes = mapped_axes(axes, lambda changes: {key: frozen(key, value) for key, value in changes.items()})
    return {**content, **groups, "sweep": content["sweep"] | {"axes": axes}}


def freeze_model(model: Mapping[str, Any], files: ModelFiles, *, phase: str) -> dict[str, Any]:
    """Plain content of a ModelSpec: depth, experts and vocabulary of what is built in the architecture's configuration.

    Raises ValueError for a size that the architecture does not have, or that the phase does not go with.
    """
    name, full = files.named(model)
    shape = moe_shape(full)
    layers = _layers(model, shape, phase)
    config = sliced_config(full, shape.layers, layers, _vocab(model, shape.vocab, layers / shape.layers))
    return {
        "name": name,
        "config": config if model["experts"] is None else with_experts(config, _experts(model, shape, phase)),
        "full_layers": shape.layers,
        "full_vocab": shape.vocab,
        "path": model["path"],
        "seed": model["seed"],
        "stored": to_plain(_quantised(files.layers.get(model["path"], ()))),
    }


def _quantised(layers: Sequence[StoredLayer]) -> Sequence[StoredLayer]:
    """None where all are plain numbers, of which the shapes say all."""
    return () if all(set(layer.formats) == {"bf16"} for layer in layers) else layers


def _packed(model: Mapping[str, Any], phase: str) -> Any:
    if "packed" not in model:
        raise ValueError("model: the key packed is missing")
    if model["packed"] is not None and phase == "layer":
        raise ValueError(f"model.packed={model['packed']}: is for prefill and decode, leave it null with phase={phase}")
    return model["packed"]


def _layers(model: Mapping[str, Any], shape: MoEShape, phase: str) -> int:
    layers = shape.layers if model["layers"] is None else model["layers"]
    if not isinstance(layers, int):
        raise ValueError(f"model.layers={layers}: must be a number or null")
    if not 1 <= layers <= shape.layers:
        raise ValueError(f"model.layers={layers}: allowed are 1 to {shape.layers} for {model['name']}")
    if phase == "layer" and layers != shape.layers:
        raise ValueError(f"model.layers={layers}: workload.phase=layer runs one layer anyway, leave model.layers=null")
    return layers


def _experts(model: Mapping[str, Any], shape: MoEShape, phase: str) -> int:
    """The requested number of experts, at most those of the model."""
    experts = model["experts"]
    if phase != "layer":
        raise ValueError(f"model.experts={experts}: is for workload.phase=layer, leave it null with phase={phase}")
    if model["path"] is not None:
        raise ValueError(f"model.experts={experts}: experts of a checkpoint are not left out, leave model.experts=null")
    if not isinstance(experts, int) or experts < shape.top_k:
        raise ValueError(
            f"model.experts={experts}: {model['name']} routes a token to {shape.top_k} experts, "
            f"allowed are {shape.top_k} to {shape.experts} and null"
        )
    return min(experts, shape.experts)


def _vocab(model: Mapping[str, Any], full: int, depth: float) -> int:
    """`auto`: the output head keeps its part of the work, so that a slice resembles the whole model."""
    if model["path"] is not None or model["vocab"] == "full":
        return full
    if model["vocab"] == "auto":
        scaled = round(full * min(max(depth, 0), 1) / _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        return full if depth >= 1 else max(scaled, _VOCAB_MULTIPLE)
    if not isinstance(model["vocab"], int) or not 1 <= model["vocab"] <= full:
        raise ValueError(f"model.vocab={model['vocab']}: allowed are auto, full and 1 to {full}")
    return int(model["vocab"])


# Keys of a command line that adapt a suite.
KEYS = ("data_dir", "limit", "confirm_unsafe")


def suite_of(composed: Composed) -> SuiteSpec | None:
    """The suite to evaluate; None without one.

    Raises ValueError for an invalid value of a suite, an unknown task, a part that is an evaluation, and keys of suites
    without a suite.
    """
    evaluations = [name for name, content in composed.parts.items() if name and content["suite"] is not None]
    if evaluations:
        raise ValueError(f"sweep.parts: {evaluations[0]} is an evaluation, run it by itself")
    given = {key: value for key in KEYS if (value := composed.run[key]) is not None and value is not False}
    names, content = composed.run["tasks"], composed.run["suite"]
    if content is None:
        if unused := next(iter([*given, *(["tasks"] if names is not None else [])]), None):
            raise ValueError(f"{unused}: is for a suite, name one with +suite=NAME")
        return None
    suite = from_plain(content | given, SuiteSpec)
    return suite if names is None else _narrowed(content | given, suite, names)


def _narrowed(content: dict[str, Any], suite: SuiteSpec, names: Any) -> SuiteSpec:
    chosen = [str(name) for name in (names if isinstance(names, list) else [names])]
    tasks = only(suite.tasks, chosen)
    kept = [one for one in content["tasks"] if one["name"] in {task.name for task in tasks}]
    return from_plain(content | {"tasks": kept}, SuiteSpec)


_ROUTING, _TRACE = "workload.routing", "workload.trace"


def fill_trace(parts: Mapping[str, Content]) -> dict[str, Content]:
    """Each part with its `workload.trace` where the routing is `recorded`, as such or as a value of an axis.

    Raises ValueError where a trace is named and no part replays one, and for a workload without the keys that decide.
    """
    for content in parts.values():
        _require_keys("workload", content["workload"], _WORK_KEYS)
    traces = [trace for content in parts.values() if (trace := content["workload"]["trace"]) is not None]
    if wrong := [trace for trace in traces if not isinstance(trace, str)]:
        raise ValueError(f"workload.trace={wrong[0]}: must be the name of a file or null")
    if traces and not any(_replays(content) for content in parts.values()):
        raise ValueError(f"workload.trace={traces[0]}: set workload.routing=recorded with it")
    return {name: _given(content) for name, content in parts.items()}


def _given(content: Content) -> Content:
    work, axes = content["workload"], content["sweep"]["axes"]
    trace = work["trace"]
    if trace is None:
        return content
    if _routings(content):
        axes = axes | {_ROUTING: [_with_trace(value, trace) for value in axes[_ROUTING]]}
    base = trace if work["routing"] == "recorded" else None
    return content | {"workload": work | {"trace": base}, "sweep": content["sweep"] | {"axes": axes}}


def _with_trace(value: Any, trace: str) -> dict[str, Any]:
    changes = axis_changes(_ROUTING, value)
    return changes | {_TRACE: trace if changes.get(_ROUTING) == "recorded" else None}


def _replays(content: Content) -> bool:
    varied = (axis_changes(_ROUTING, value).get(_ROUTING) for value in _routings(content))
    return "recorded" in (content["workload"]["routing"], *varied)


def _routings(content: Content) -> list[Any]:
    axes = content["sweep"]["axes"]
    values = axes.get(_ROUTING, []) if isinstance(axes, dict) else []
    return values if isinstance(values, list) else []
