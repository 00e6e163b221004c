"""What the engine and the peers do not run on any machine: rules that need the spec alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm

from ktbench.spec.features import FEATURES, Feature, FeatureValue
from ktbench.spec.peers import IMPLEMENTATION_OWN, OURS, Peer, peer_of
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import FORMATS, Precision, expert_bytes

_GIB = 2**30
# Limit on copied weights per call: one token of the largest models (DeepSeek-V3, Kimi K2) copies 0.7 GiB.
_MAX_COPIED_BYTES = 4 * _GIB


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cell cannot run: `where` is the key, feature or system at fault, `why` says what is wrong with it."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def unsupported(spec: RunSpec) -> str:
    """The first reason why the system of the spec cannot run it on any machine; empty where it can."""
    return next(map(str, rules_broken(spec)), "")


def rules_broken(spec: RunSpec) -> Iterator[Reason]:
    """All reasons why the system of the spec cannot run it on any machine."""
    yield from _engine_rules(spec) if spec.system == OURS else _peer_rules(spec, peer_of(spec.system))


def features_missing(spec: RunSpec, missing: Mapping[str, str]) -> Iterator[Reason]:
    """Features of the spec that a machine lacks; `missing` says why by feature name, empty where it has it."""
    for feature, value in spec.engine.on:
        if (why := missing.get(feature.name)) and not _is_logical(feature, spec):
            yield Reason(feature.tag(value), why)


def _is_logical(feature: Feature, spec: RunSpec) -> bool:
    """Logical domains need no NUMA nodes."""
    return feature.needs == ("numa",) and spec.engine.domains is not None


def _engine_rules(spec: RunSpec) -> Iterator[Reason]:
    engine = spec.engine
    for feature, value in engine.on:
        yield from _feature_rules(feature, value, spec)
    yield from _training_rules(spec)
    if spec.workload.phase == "layer":
        yield from _layer_rules(spec)
    elif spec.precision != "bf16" and not engine.fused:
        yield Reason(f"precision={spec.precision}", "base runs bf16 weights, other precisions need +a, +v or +m")
    yield from _stored_rules(spec)
    for key, precision in (("precision", spec.precision), ("device_precision", spec.device_precision)):
        if not FORMATS[precision].from_numbers and not _may_be_stored(spec, key, precision):
            yield Reason(f"{key}={precision}", "numbers are not quantised to it: model.path=FILE.gguf")
    yield from _width_rules(spec, f"precision={spec.precision}", spec.precision)
    yield from _mixed_rules(spec)
    if engine.placement.policy != "host" and not engine.fused:
        yield Reason(f"engine.placement.policy={engine.placement.policy}", "needs the fused operator: +a, +v or +m")


def _feature_rules(feature: Feature, value: FeatureValue, spec: RunSpec) -> Iterator[Reason]:
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
    yield from (Reason(where, limit.text(spec)) for limit in feature.limits if limit.holds(spec))


def _training_rules(spec: RunSpec) -> Iterator[Reason]:
    engine, model = spec.engine, spec.model
    if spec.workload.phase != "train":
        return
    if engine.placement.policy != "host":
        yield Reason(f"engine.placement.policy={engine.placement.policy}", "experts are trained through on the cores")
    if engine.roles_concurrent and engine.device == "cpu":
        yield Reason(f"engine.roles={engine.roles}", "a training step has one role, leave it out with workload=train")
    for key in ("packed", "adapter"):
        if (held := getattr(model, key)) is not None:
            yield Reason(f"model.{key}={held}", "is for inference, leave it null with workload=train")
    if model.stored:
        yield Reason(f"model.path={model.path}", "training starts from weights in bf16, those are quantised")


def _stored_rules(spec: RunSpec) -> Iterator[Reason]:
    """Gate and up share tiles: where experts are packed as they are stored, both have one format."""
    if not (spec.engine.fused and spec.model.keeps_stored(spec.precision)):
        return
    for number, layer in enumerate(spec.model.stored_here, 1):
        if layer.gate != layer.up:
            yield Reason(
                f"precision={spec.precision}",
                f"MoE layer {number} has gate in {layer.gate} and up in {layer.up}, which run in bf16, int8 and others "
                "that numbers are quantised to",
            )
            return


def _mixed_rules(spec: RunSpec) -> Iterator[Reason]:
    """Rules that give experts of some layers a precision of their own."""
    precisions, where = spec.inject.precisions_of("experts"), f"inject={spec.inject.name}"
    if not (spec.engine.fused and precisions):
        return
    for precision in precisions:
        yield from _width_rules(spec, f"{where} precision={precision}", precision)
    if spec.workload.phase in ("layer", "train"):
        yield Reason(where, f"workload.phase={spec.workload.phase} has experts of one precision, set precision=")
    if spec.model.stored:
        yield Reason(where, f"precisions of layers are for weights in bf16, those of {spec.model.path} are quantised")
    if spec.maps_packed:
        yield Reason(where, "model.packed keeps experts of one precision, leave it null")
    if spec.engine.placement.policy != "host" or spec.engine.device_prefill_tokens:
        yield Reason(where, "experts of several precisions stay on the host, leave out placement and layerwise prefill")


def _may_be_stored(spec: RunSpec, key: str, precision: Precision) -> bool:
    """Of linear layers a cell does not know the formats: requests are held against the checkpoint."""
    stored = {one for layer in spec.model.stored for one in layer.formats}
    return spec.model.path is not None and (key == "device_precision" or precision in stored)


def _width_rules(spec: RunSpec, where: str, precision: Precision) -> Iterator[Reason]:
    if FORMATS[precision].whole_blocks:
        yield from _multiple_rules(spec, where, FORMATS[precision].group)


def _multiple_rules(spec: RunSpec, where: str, step: int) -> Iterator[Reason]:
    shape = spec.model.shape
    if shape.hidden % step or shape.expert_ffn % step:
        widths = f"{spec.model.name} has {shape.hidden} and {shape.expert_ffn}"
        yield Reason(where, f"widths must be multiples of {step}, {widths}")


def _layer_rules(spec: RunSpec) -> Iterator[Reason]:
    networks = [feature for feature in FEATURES if "decode" in feature.phases and "layer" not in feature.phases]
    if spec.engine.roles_concurrent or any(feature in networks for feature, _ in spec.engine.on):
        marks = ", ".join(sorted((feature.mark for feature in networks), key=lambda mark: mark.startswith("+")))
        yield Reason("workload.phase=layer", f"runs the routed experts alone, without {marks} and separate roles")
    yield from _layer_work_rules(spec)


def _layer_work_rules(spec: RunSpec) -> Iterator[Reason]:
    """Rules of `workload.phase=layer` for every system."""
    work, model = spec.workload, spec.model
    if model.path is not None:
        yield Reason(f"model.path={model.path}", "workload.phase=layer has synthetic weights, use prefill or decode")
    if work.routing == "recorded" and work.trace is None:
        yield Reason("workload.routing=recorded", "set workload.trace to FILE or FILE:ARRAY")
    pairs = work.batch * model.shape.top_k
    if work.active_experts is not None and pairs % work.active_experts:
        yield Reason(
            f"workload.active_experts={work.active_experts}",
            f"must divide {pairs} (workload.batch={work.batch} times top_k={model.shape.top_k})",
        )


def _peer_rules(spec: RunSpec, peer: Peer) -> Iterator[Reason]:
    work, name = spec.workload, peer.name
    if peer.unusable:
        yield Reason(f"system={name}", peer.unusable)
        return
    if spec.engine.device != peer.device:
        yield Reason(f"engine.device={spec.engine.device}", f"{name} needs engine.device={peer.device}")
    if work.phase not in peer.phases:
        yield Reason(f"workload.phase={work.phase}", f"{name} runs {' and '.join(peer.phases)}")
    if spec.precision not in peer.types:
        formats = ", ".join(peer.types)
        yield Reason(f"precision={spec.precision}", f"{name} has no such format; allowed are {formats}")
    if work.phase != "layer" and work.routing != "model":
        yield Reason(f"workload.routing={work.routing}", f"{name} runs the model's routers, set workload.routing=model")
    if work.phase == "layer":
        yield from _layer_work_rules(spec)
    if peer.types.get(spec.precision) == spec.precision:  # in our groups, whole ones only
        step = lcm(peer.multiple, FORMATS[spec.precision].group or 1)
        yield from _multiple_rules(spec, f"system={name} precision={spec.precision}", step)
    if name == "transformers" and spec.peer.implementation == IMPLEMENTATION_OWN and work.phase == "serve":
        yield Reason("peer.implementation=own", "runs prefill, decode and layer, not serve")
    if name == "transformers" and spec.peer.implementation == "batched_mm":
        yield from _copying_rules(spec)
    if peer.black_box:
        yield from _black_box_rules(spec, peer)


def _black_box_rules(spec: RunSpec, peer: Peer) -> Iterator[Reason]:
    work = spec.workload
    if spec.device_precision not in peer.types:
        yield Reason(f"device_precision={spec.device_precision}", f"{peer.name} has no such format")
    if work.shortest is not None:
        yield Reason(
            f"workload.shortest={work.shortest}", f"{peer.name} takes prompts of one length, set workload.shortest=null"
        )
    if peer.name == "llama-server" and work.stream is not None and work.stream.turns > 1:
        yield Reason(
            f"workload.stream.turns={work.stream.turns}",
            f"{peer.name} answers in text, prompts of later turns need its tokens; set workload.stream.turns=1",
        )
    if work.chunk is not None and not peer.chunks:
        yield Reason(f"workload.chunk={work.chunk}", f"{peer.name} sets its own chunks, set workload.chunk=null")


def _copying_rules(spec: RunSpec) -> Iterator[Reason]:
    """`batched_mm` copies the weights of every expert of every token, layer by layer."""
    work, top_k = spec.workload, spec.model.shape.top_k
    tokens = work.batch * (min(work.prompt, work.chunk or work.prompt) if work.phase == "prefill" else 1)
    copied = tokens * top_k * expert_bytes(spec.model.shape, "bf16")
    if copied > _MAX_COPIED_BYTES:
        yield Reason(
            "peer.implementation=batched_mm",
            f"copies the experts of {tokens} tokens with top_k={top_k}, {copied / _GIB:.1f} GiB a layer; "
            f"allowed are {_MAX_COPIED_BYTES // _GIB} GiB",
        )
