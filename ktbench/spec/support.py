"""What the engine and the peers do not run on any machine: rules that need the spec alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm

from ktbench.spec.features import FEATURES, Feature, FeatureValue
from ktbench.spec.limits import Limit, Reason, broken
from ktbench.spec.peers import IMPLEMENTATION_OWN, OURS, Peer, peer_of
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import FORMATS, Precision, expert_bytes

_GIB = 2**30
# Limit on copied weights per call: one token of the largest models (DeepSeek-V3, Kimi K2) copies 0.7 GiB.
_MAX_COPIED_BYTES = 4 * _GIB


def unsupported(spec: RunSpec) -> str:
    """The first reason why the system of the spec cannot run it on any machine; empty where it can."""
    return next(map(str, rules_broken(spec)), "")


def rules_broken(spec: RunSpec) -> Iterator[Reason]:
    """All reasons why the system of the spec cannot run it on any machine."""
    if spec.system != OURS:
        yield from _peer_reasons(spec)
        return
    for feature, value in spec.engine.on:
        yield from _feature_reasons(feature, value, spec)
    if spec.workload.phase == "train":
        yield from broken(_TRAINING, spec)
    yield from broken(_LAYER if spec.workload.phase == "layer" else _NETWORK, spec)
    yield from broken(_WEIGHTS, spec)
    yield from _mixed_reasons(spec)
    yield from broken(_PLACEMENT, spec)


def features_missing(spec: RunSpec, missing: Mapping[str, str]) -> Iterator[Reason]:
    """Features of the spec that a machine lacks; `missing` says why by feature name, empty where it has it."""
    for feature, value in spec.engine.on:
        if (why := missing.get(feature.name)) and not _is_logical(feature, spec):
            yield Reason(feature.tag(value), why)


def _is_logical(feature: Feature, spec: RunSpec) -> bool:
    """Logical domains need no NUMA nodes."""
    return feature.needs == ("numa",) and spec.engine.domains is not None


def _feature_reasons(feature: Feature, value: FeatureValue, spec: RunSpec) -> Iterator[Reason]:
    """What keeps a feature that is on from acting: the phase, or a limit of its own."""
    phase, where = spec.workload.phase, feature.where(value)
    if phase not in feature.phases:
        if feature.serving:
            yield Reason(feature.tag(value), "acts where requests are served, set workload=serve")
        elif len(feature.phases) == 1:
            yield Reason(where, f"acts in {feature.phases[0]}, leave it out with other phases")
        elif phase == "train":
            yield Reason(feature.tag(value), "acts in inference only, leave it out with workload=train")
        return
    if feature.routes and phase == "prefill" and not spec.engine.defer_prefill:
        yield Reason(where, "acts in decode only, set engine.defer_prefill=true for prefill")
    yield from broken(feature.limits, spec, where=where)


_INFERENCE_ONLY = "is for inference, leave it null with workload=train"
_TRAINING = (
    Limit(
        lambda spec: spec.engine.placement.policy != "host",
        "experts are trained through on the cores",
        "engine.placement.policy",
    ),
    Limit(
        lambda spec: spec.engine.roles_concurrent and spec.engine.device == "cpu",
        "a training step has one role, leave it out with workload=train",
        "engine.roles",
    ),
    Limit(lambda spec: spec.model.packed is not None, _INFERENCE_ONLY, "model.packed"),
    Limit(lambda spec: spec.model.adapter is not None, _INFERENCE_ONLY, "model.adapter"),
    Limit(
        lambda spec: bool(spec.model.stored), "training starts from weights in bf16, those are quantised", "model.path"
    ),
)


def _runs_network(spec: RunSpec) -> bool:
    """Whether anything is on that acts on a network and not on one layer."""
    return spec.engine.roles_concurrent or any(
        "decode" in feature.phases and "layer" not in feature.phases for feature, _ in spec.engine.on
    )


def _network_marks(_: RunSpec) -> str:
    marks = [feature.mark for feature in FEATURES if "decode" in feature.phases and "layer" not in feature.phases]
    listed = ", ".join(sorted(marks, key=lambda mark: mark.startswith("+")))
    return f"runs the routed experts alone, without {listed} and separate roles"


def _pairs(spec: RunSpec) -> int:
    """Pairs of a token and an expert in a step of one layer."""
    return spec.workload.batch * spec.model.shape.top_k


# Of every system.
_LAYER_WORK = (
    Limit(
        lambda spec: spec.model.path is not None,
        "workload.phase=layer has synthetic weights, use prefill or decode",
        "model.path",
    ),
    Limit(
        lambda spec: spec.workload.routing == "recorded" and spec.workload.trace is None,
        "set workload.trace to FILE or FILE:ARRAY",
        "workload.routing",
    ),
    Limit(
        lambda spec: spec.workload.active_experts is not None and _pairs(spec) % spec.workload.active_experts != 0,
        lambda spec: (
            f"must divide {_pairs(spec)} (workload.batch={spec.workload.batch} times top_k={spec.model.shape.top_k})"
        ),
        "workload.active_experts",
    ),
)
_LAYER = (Limit(_runs_network, _network_marks, "workload.phase"), *_LAYER_WORK)
_NETWORK = (
    Limit(
        lambda spec: spec.precision != "bf16" and not spec.engine.fused,
        "base runs bf16 weights, other precisions need +a, +v or +m",
        "precision",
    ),
)


def _parted(spec: RunSpec) -> list[str]:
    """MoE layers whose gate and up, which share tiles where experts are packed as they are stored, differ in format."""
    if not (spec.engine.fused and spec.model.keeps_stored(spec.precision)):
        return []
    layers = enumerate(spec.model.stored_here, 1)
    return [f"{number} has gate in {one.gate} and up in {one.up}" for number, one in layers if one.gate != one.up]


def _lacks_numbers(spec: RunSpec, precision: Precision, *, stored: bool) -> bool:
    """Whether numbers are not quantised to a precision, and no file has weights in it."""
    return not FORMATS[precision].from_numbers and (spec.model.path is None or not stored)


def _is_uneven(spec: RunSpec, step: int) -> bool:
    return bool(spec.model.shape.hidden % step or spec.model.shape.expert_ffn % step)


def _widths(spec: RunSpec, step: int) -> str:
    shape = spec.model.shape
    return f"widths must be multiples of {step}, {spec.model.name} has {shape.hidden} and {shape.expert_ffn}"


def _block(precision: Precision) -> int:
    """What the widths of a format must be multiples of."""
    return FORMATS[precision].group if FORMATS[precision].whole_blocks else 1


_WEIGHTS = (
    Limit(
        lambda spec: bool(_parted(spec)),
        lambda spec: f"MoE layer {_parted(spec)[0]}, which run in bf16, int8 and others that numbers are quantised to",
        "precision",
    ),
    Limit(
        lambda spec: _lacks_numbers(
            spec, spec.precision, stored=any(spec.precision in layer.formats for layer in spec.model.stored)
        ),
        "numbers are not quantised to it: model.path=FILE.gguf",
        "precision",
    ),
    # A cell does not know the formats of linear layers: requests are held against the checkpoint.
    Limit(
        lambda spec: _lacks_numbers(spec, spec.device_precision, stored=True),
        "numbers are not quantised to it: model.path=FILE.gguf",
        "device_precision",
    ),
    Limit(
        lambda spec: _is_uneven(spec, _block(spec.precision)),
        lambda spec: _widths(spec, _block(spec.precision)),
        "precision",
    ),
)
_PLACEMENT = (
    Limit(
        lambda spec: spec.engine.placement.policy != "host" and not spec.engine.fused,
        "needs the fused operator: +a, +v or +m",
        "engine.placement.policy",
    ),
)
# Of rules that give experts of some layers a precision of their own.
_MIXED = (
    Limit(
        lambda spec: spec.workload.phase in ("layer", "train"),
        lambda spec: f"workload.phase={spec.workload.phase} has experts of one precision, set precision=",
        "inject",
    ),
    Limit(
        lambda spec: bool(spec.model.stored),
        lambda spec: f"precisions of layers are for weights in bf16, those of {spec.model.path} are quantised",
        "inject",
    ),
    Limit(lambda spec: spec.maps_packed, "model.packed keeps experts of one precision, leave it null", "inject"),
    Limit(
        lambda spec: spec.engine.placement.policy != "host" or bool(spec.engine.device_prefill_tokens),
        "experts of several precisions stay on the host, leave out placement and layerwise prefill",
        "inject",
    ),
)


def _mixed_reasons(spec: RunSpec) -> Iterator[Reason]:
    precisions = spec.inject.precisions_of("experts")
    if spec.engine.fused and precisions:
        for precision in precisions:
            if _is_uneven(spec, _block(precision)):
                where = f"inject={spec.inject.name} precision={precision}"
                yield Reason(where, _widths(spec, _block(precision)))
        yield from broken(_MIXED, spec)


def _peer(spec: RunSpec) -> Peer:
    return peer_of(spec.system)


def _peer_reasons(spec: RunSpec) -> Iterator[Reason]:
    peer = _peer(spec)
    if peer.unusable:
        yield Reason(f"system={spec.system}", peer.unusable)
        return
    yield from broken(_PEERS, spec)
    if spec.workload.phase == "layer":
        yield from broken(_LAYER_WORK, spec)
    yield from broken(_OPERATORS, spec)
    if peer.black_box:
        yield from broken(_BLACK_BOXES, spec)


def _step(spec: RunSpec) -> int:
    """What widths must be multiples of where a peer runs weights in our groups: whole groups of both."""
    in_groups = _peer(spec).types.get(spec.precision) == spec.precision
    return lcm(_peer(spec).multiple, FORMATS[spec.precision].group or 1) if in_groups else 1


def _copied_tokens(spec: RunSpec) -> int:
    work = spec.workload
    return work.batch * (min(work.prompt, work.chunk or work.prompt) if work.phase == "prefill" else 1)


def _copied_bytes(spec: RunSpec) -> int:
    """`batched_mm` copies the weights of every expert of every token, layer by layer."""
    return _copied_tokens(spec) * spec.model.shape.top_k * expert_bytes(spec.model.shape, "bf16")


_PEERS = (
    Limit(
        lambda spec: spec.engine.device != _peer(spec).device,
        lambda spec: f"{spec.system} needs engine.device={_peer(spec).device}",
        "engine.device",
    ),
    Limit(
        lambda spec: spec.workload.phase not in _peer(spec).phases,
        lambda spec: f"{spec.system} runs {' and '.join(_peer(spec).phases)}",
        "workload.phase",
    ),
    Limit(
        lambda spec: spec.precision not in _peer(spec).types,
        lambda spec: f"{spec.system} has no such format; allowed are {', '.join(_peer(spec).types)}",
        "precision",
    ),
    Limit(
        lambda spec: spec.workload.phase != "layer" and spec.workload.routing != "model",
        lambda spec: f"{spec.system} runs the model's routers, set workload.routing=model",
        "workload.routing",
    ),
)
_OPERATORS = (
    Limit(lambda spec: _is_uneven(spec, _step(spec)), lambda spec: _widths(spec, _step(spec)), "system precision"),
    Limit(
        lambda spec: (
            spec.system == "transformers"
            and spec.peer.implementation == IMPLEMENTATION_OWN
            and spec.workload.phase == "serve"
        ),
        "runs prefill, decode and layer, not serve",
        "peer.implementation",
    ),
    Limit(
        lambda spec: (
            spec.system == "transformers"
            and spec.peer.implementation == "batched_mm"
            and _copied_bytes(spec) > _MAX_COPIED_BYTES
        ),
        lambda spec: (
            f"copies the experts of {_copied_tokens(spec)} tokens with top_k={spec.model.shape.top_k}, "
            f"{_copied_bytes(spec) / _GIB:.1f} GiB a layer; allowed are {_MAX_COPIED_BYTES // _GIB} GiB"
        ),
        "peer.implementation",
    ),
)
_BLACK_BOXES = (
    Limit(
        lambda spec: spec.device_precision not in _peer(spec).types,
        lambda spec: f"{spec.system} has no such format",
        "device_precision",
    ),
    Limit(
        lambda spec: spec.workload.shortest is not None,
        lambda spec: f"{spec.system} takes prompts of one length, set workload.shortest=null",
        "workload.shortest",
    ),
    Limit(
        lambda spec: (
            spec.system == "llama-server" and spec.workload.stream is not None and spec.workload.stream.turns > 1
        ),
        lambda spec: (
            f"{spec.system} answers in text, prompts of later turns need its tokens; set workload.stream.turns=1"
        ),
        "workload.stream.turns",
    ),
    Limit(
        lambda spec: spec.workload.chunk is not None and not _peer(spec).chunks,
        lambda spec: f"{spec.system} sets its own chunks, set workload.chunk=null",
        "workload.chunk",
    ),
)
