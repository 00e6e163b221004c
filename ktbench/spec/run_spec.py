"""What to run, frozen: each part refuses a wrong value at construction and says what to change."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import at_least, check_ranges
from ktbench.spec.features import Phase
from ktbench.spec.inject import InjectSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS, PeerSpec, peer_of, system_label
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.shape import LoraNumbers, MoEShape, moe_shape, text_config
from ktbench.spec.weights import FORMATS, Dtype, Precision, StoredLayer, stands_for_all

# What LoRA is on.
Adapters = Literal["attention", "experts", "both"]
Routing = Literal["model", "balanced", "zipf", "concentrated", "recorded"]
_FEW_STEPS = 3
_MOST_OFF = 0.02  # of a slice's part of the vocabulary, which is rounded
# A simulation asks for every layer, and reading a configuration takes many times longer than finding it here.
_SHAPES: dict[str, MoEShape] = {}


class _WithShape:
    """Room for what is found once, which is no field."""

    __slots__ = ("_shape",)
    _shape: MoEShape


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec(_WithShape):
    """A model: a slice of a known architecture with seeded synthetic weights, or a local checkpoint.

    `config` is the Hugging Face configuration as it will be built, slice depth and vocabulary already applied;
    `full_layers` and `full_vocab` are those of the whole architecture. `packed` is the folder in which packed weights
    are kept from one load to the next. `stored` are the MoE layers of a whole checkpoint whose experts are quantised.
    `adapter` is a folder that PEFT saved, whose LoRA is merged into the weights before they are packed.
    """

    name: str
    config: dict[str, Any]
    full_layers: int
    full_vocab: int
    path: str | None = None
    packed: str | None = None
    adapter: str | None = None
    seed: int = 0
    stored: tuple[StoredLayer, ...] = ()

    def __post_init__(self) -> None:
        if self.packed == "":
            raise ValueError("model.packed=: name a folder")
        if self.adapter is not None:
            self._check_adapter(f"model.adapter={self.adapter}")
        if not 1 <= self.shape.layers <= self.full_layers:
            raise ValueError(f"model.layers={self.shape.layers}: allowed are 1 to {self.full_layers} for {self.name}")
        if self.shape.moe_layers < 1:
            least = self.shape.dense_layers + 1
            raise ValueError(f"model.layers={self.shape.layers}: {self.name} has its first MoE layer at {least}")

    def _check_adapter(self, what: str) -> None:
        if self.adapter == "":
            raise ValueError(f"{what}: name a folder")
        if self.path is None or self.path.endswith(".gguf"):
            raise ValueError(f"{what}: is for a Hugging Face folder, set model.path")
        if self.stored:
            raise ValueError(f"{what}: is for weights in bf16, those of {self.path} are quantised")
        if self.packed is not None:
            raise ValueError(f"{what}: merged weights are not kept, leave out model.packed")

    @property
    def shape(self) -> MoEShape:
        """Sizes of the model as built."""
        if not hasattr(self, "_shape"):
            known = repr(self.config)
            if known not in _SHAPES:
                _SHAPES[known] = moe_shape(self.config)
            object.__setattr__(self, "_shape", _SHAPES[known])
        return self._shape

    @property
    def is_slice(self) -> bool:
        """Whether layers were left out."""
        return self.shape.layers < self.full_layers

    @property
    def depth(self) -> str:
        """How many layers there are, of how many where some were left out: `4 of 48 layers`."""
        layers = self.shape.layers
        return f"{layers} of {self.full_layers} layers" if self.is_slice else f"{layers} layers"

    @property
    def whole_over_slice(self) -> float | None:
        """How many times the work of a step of this slice one of the whole model is; None where that is not known.

        A slice has the whole model's layers and output head in their proportion: its vocabulary was cut as its depth,
        every layer has routed experts, and kinds of attention recur in it.
        """
        config, layers = text_config(self.config), self.shape.layers
        share, kinds = layers / self.full_layers, config.get("layer_types") or []
        every = config.get("full_attention_interval") or 1
        recurs = len({*kinds}) < 2 or (layers % 2 == 0 and kinds[: layers // 2] == kinds[layers // 2 :])
        has_head = abs(self.shape.vocab / self.full_vocab - share) <= _MOST_OFF * share
        alike = recurs and layers % every == 0 and not self.shape.dense_layers and not self.stored
        return 1 / share if alike and has_head and self.is_slice else None

    @property
    def stored_here(self) -> tuple[StoredLayer, ...]:
        """Of `stored`, the layers that are not left out."""
        return self.stored[: self.shape.moe_layers]

    def keeps_stored(self, precision: Precision) -> bool:
        """Whether experts that are packed in a precision keep the formats that they are stored in, whatever these."""
        return stands_for_all(precision, {one for layer in self.stored for one in layer.formats})

    def expert_formats(self, precision: Precision) -> tuple[tuple[Precision, Precision], ...]:
        """Formats of gate and up, and of down, of every MoE layer whose experts are packed in a precision."""
        if self.keeps_stored(precision):
            return tuple((layer.gate, layer.down) for layer in self.stored_here)
        return ((precision, precision),) * self.shape.moe_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSpec:
    """One timed unit of work and how often a trial repeats it.

    prefill: a step is one forward pass over `batch` prompts of `prompt` tokens. decode: a step is one token for each of
    `batch` sequences, the first at context depth `prompt`. layer: a step is one call of the routed experts of one MoE
    layer over `batch` tokens, routed to `active_experts` of them (None: to all) that change from step to step; `prompt`
    is 1. serve: the requests of `stream` are served, a step is a block of them, and a sample seconds per output token
    (see `Replay.samples_s`); `prompt` is the mean of the tokens of a prompt. A trial times `steps` steps. `trace` is
    the file behind routing=recorded. With `shortest` the prompts of a batch have from so many to `prompt` tokens,
    evenly spread and padded on the left. `chunk` tokens of a prompt are put through at a time (None: all).

    train: a step is forward, backward and AdamW on the LoRA of `adapters` with rank `lora_rank`, over `batch` sequences
    of `prompt` tokens; with `recompute` the backward pass forms the activations of the experts again instead of keeping
    them. These three are None with other phases. `examples` is a file of prompts with completions that are learned, in
    sequences padded to `prompt` tokens (None: random tokens); `seed` draws the batches, and LoRA's first values.
    """

    phase: Annotated[Phase, Meta(description="what a step is")]
    prompt: Annotated[int, Meta(ge=1, description="tokens of a prompt; in decode the context depth")]
    steps: Annotated[int, Meta(ge=1, description="timed steps of a trial")]
    batch: Annotated[int, Meta(ge=1, description="sequences at once")] = 1
    routing: Annotated[Routing, Meta(description="how experts are chosen")] = "model"
    seed: Annotated[int, Meta(description="of tokens, routing and requests")] = 0
    active_experts: Annotated[int, Meta(ge=1, description="phase=layer: experts with tokens; null: all")] | None = None
    trace: Annotated[str | None, Meta(description="with routing=recorded: the file")] = None
    shortest: Annotated[int | None, Meta(description="shortest prompt of a batch; null: all are equal")] = None
    chunk: Annotated[int, Meta(ge=1, description="tokens of a prompt at a time; null: all")] | None = None
    stream: StreamSpec | None = None
    adapters: Annotated[Adapters | None, Meta(description="with phase=train: what LoRA is on")] = None
    lora_rank: Annotated[int, Meta(ge=1, description="with phase=train: its rank")] | None = None
    recompute: Annotated[bool | None, Meta(description="with phase=train: form activations again")] = None
    examples: Annotated[str | None, Meta(description="with phase=train: prompts and completions to learn")] = None

    def __post_init__(self) -> None:
        check_ranges(self, "workload")
        self._check_prompts()
        self._check_stream()
        self._check_training()
        if self.phase == "layer":
            self._check_layer()
        elif self.active_experts is not None:
            raise ValueError(f"workload.phase={self.phase}: active_experts is for phase=layer")
        if self.trace is not None and self.routing != "recorded":
            raise ValueError(f"workload.trace={self.trace}: set workload.routing=recorded with it")

    def _check_prompts(self) -> None:
        if self.shortest is not None and not 1 <= self.shortest <= self.prompt:
            raise ValueError(f"workload.shortest={self.shortest}: allowed are 1 to workload.prompt={self.prompt}")
        if self.phase == "layer" and (self.shortest is not None or self.chunk is not None):
            raise ValueError("workload.phase=layer: has no prompts, leave workload.shortest and workload.chunk null")

    def _check_stream(self) -> None:
        if (self.stream is None) == (self.phase == "serve"):
            raise ValueError("workload.stream: goes with workload.phase=serve, set workload=serve")
        if self.stream is None:
            return
        if (self.batch, self.routing, self.shortest, self.chunk) != (1, "model", None, None):
            raise ValueError(
                "workload.phase=serve: requests are what workload.stream says, leave workload.batch, routing, shortest "
                "and chunk as they are"
            )
        self.stream.require_blocks(self.steps)

    def _check_training(self) -> None:
        for name in ("adapters", "lora_rank", "recompute"):
            if (getattr(self, name) is None) == (self.phase == "train"):
                raise ValueError(f"workload.{name}: goes with workload.phase=train, set workload=train")
        if self.examples is not None and (self.phase != "train" or not self.examples):
            raise ValueError(f"workload.examples={self.examples}: name a file of them, with workload=train")
        if self.phase == "train" and self.prompt < 2:
            raise ValueError(f"workload.prompt={self.prompt}: must be at least 2, a token is learned from those before")
        if self.phase == "train" and (self.routing, self.shortest, self.chunk) != ("model", None, None):
            raise ValueError(
                "workload.phase=train: sequences are whole, equally long and routed by the model, leave "
                "workload.routing, shortest and chunk as they are"
            )

    def _check_layer(self) -> None:
        if self.prompt != 1:
            raise ValueError(f"workload.prompt={self.prompt}: must be 1 with workload.phase=layer, set workload.batch")
        if self.routing == "model":
            raise ValueError("workload.routing=model: a layer alone has no router, set balanced, zipf, ... instead")
        if self.active_experts is not None and self.routing != "balanced":
            raise ValueError(f"workload.active_experts={self.active_experts}: needs workload.routing=balanced")

    @property
    def without_start(self) -> WorkloadSpec:
        """The same, whatever the prefix cache holds before."""
        return self if self.stream is None else replace(self, stream=replace(self.stream, cache="cold"))

    @property
    def greedy(self) -> WorkloadSpec:
        """The same, with the likeliest tokens as answers."""
        return self if self.stream is None else replace(self, stream=replace(self.stream, temperature=0.0))

    @property
    def has_whole_chunk(self) -> bool:
        """Whether a prompt begins with a chunk of `chunk` tokens."""
        return self.chunk is not None and self.chunk <= self.prompt

    @property
    def few_steps(self) -> int:
        """Steps that warm up and that are compared: all, the first ones where hundreds learn from examples."""
        return self.steps if self.examples is None else min(self.steps, _FEW_STEPS)

    @property
    def has_context(self) -> bool:
        """Whether a step follows `prompt` tokens whose keys and values are kept."""
        return self.phase == "decode"

    @property
    def unit(self) -> str:
        """What a sample is the time of."""
        return {"layer": "layer", "serve": "token"}.get(self.phase, "step")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step puts through the model; where requests are served, those that a sample is about."""
        return self.batch * (self.prompt if self.phase in ("prefill", "train") else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureSpec:
    """How long to measure. Rounds go on until every interval is narrow enough, or to a ceiling.

    `goal` is the half-width of an interval relative to its median, `tolerance` the largest relative (Frobenius) error
    against the float32 reference (None: what the precision allows), `turn_timeout_s` and `load_timeout_s` deadlines of
    the worker in seconds, for loading since its last report of progress. The least rounds are divided into
    `reload_blocks` blocks, all further rounds into blocks of the same length, and the weights are loaded anew between
    blocks (1: they stay loaded).
    """

    min_rounds: Annotated[int, Meta(ge=1, description="rounds at least; six give an interval")] = 6
    max_rounds: Annotated[int, Meta(description="rounds at most")] = 60
    max_minutes: Annotated[float, Meta(gt=0, description="minutes of trials at most")] = 5.0
    goal: Annotated[float, Meta(gt=0, description="precision goal: relative half width of intervals")] = 0.05
    tolerance: Annotated[float, Meta(gt=0, description="largest error against float32; null: by precision")] | None = (
        None
    )
    turn_timeout_s: Annotated[float, Meta(gt=0, description="seconds for a trial")] = 120.0
    load_timeout_s: Annotated[float, Meta(gt=0, description="seconds of loading without progress")] = 900.0
    reload_blocks: Annotated[int, Meta(description="how often weights are loaded anew")] = 1

    def __post_init__(self) -> None:
        check_ranges(self, "measure")
        at_least("measure.max_rounds", self.max_rounds, self.min_rounds)
        if not 1 <= self.reload_blocks <= self.min_rounds:
            raise ValueError(
                f"measure.reload_blocks={self.reload_blocks}: allowed are 1 to measure.min_rounds={self.min_rounds}"
            )

    @property
    def reloads(self) -> bool:
        """Whether the weights are loaded anew between blocks of rounds."""
        return self.reload_blocks > 1

    @property
    def block_rounds(self) -> int:
        """Rounds of a block; one where the weights stay loaded, as each round is a value of its own then."""
        return self.min_rounds // self.reload_blocks if self.reloads else 1

    @property
    def unit(self) -> str:
        """What is one of the independent values of a cell: a `block` of rounds, or a `round`."""
        return "block" if self.reloads else "round"

    def block_of(self, round_number: int) -> int:
        """The number of the block that a round is of; that of the round where the weights stay loaded."""
        return round_number // self.block_rounds

    def load_of(self, round_number: int) -> int:
        """How often the weights were loaded anew before a round."""
        return self.block_of(round_number) if self.reloads else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One cell: which system runs which model on which work with which features.

    `precision` is that of the routed experts in the fused operator, `device_precision` that of the linear layers which
    the lean device role packs; a peer runs either in its own format of as many bits (`Peer.types`). With a `machine`
    the cell is simulated on it, without one it is measured here.
    """

    model: ModelSpec
    workload: WorkloadSpec
    engine: EngineSpec = field(default_factory=EngineSpec)
    measure: MeasureSpec = field(default_factory=MeasureSpec)
    system: str = OURS
    precision: Precision = "bf16"
    device_precision: Precision = "bf16"
    inject: InjectSpec = field(default_factory=InjectSpec)
    peer: PeerSpec = field(default_factory=PeerSpec)
    machine: MachineSpec | None = None

    def __post_init__(self) -> None:
        if self.workload.routing == "recorded" and self.workload.phase != "layer" and self.machine is None:
            raise ValueError("workload.routing=recorded: is for workload.phase=layer, or set machine= to simulate it")
        if self.system != OURS and self.engine.label != "base":
            raise ValueError(f"system={self.system}: has none of our features, leave out {self.engine.label}")
        self._check_cache()
        if self.workload.examples is not None and self.model.path is None:
            raise ValueError(
                f"workload.examples={self.workload.examples}: {self.model.name} has no tokenizer, "
                "set model.path=FOLDER or model=nano"
            )
        if self.model.adapter is not None and self.system not in (OURS, "transformers"):
            raise ValueError(f"model.adapter={self.model.adapter}: is for ktbench and transformers, not {self.system}")
        top_k, engine = self.model.shape.top_k, self.engine
        if engine.placement.policy == "frequency" and engine.placement.profile is None and self.machine is None:
            raise ValueError("engine.placement: policy=frequency needs profile=FILE, or set machine= to simulate it")
        for name, count in (("deferral", engine.deferral), ("skipping", engine.skipping)):
            if count != "auto" and count > top_k:
                raise ValueError(
                    f"engine.{name}={count}: {self.model.name} has top_k={top_k} experts a token, "
                    f"allowed are 0 to {top_k}"
                )
        active, experts = self.workload.active_experts, self.model.shape.experts
        if active is not None and not top_k <= active <= experts:
            raise ValueError(
                f"workload.active_experts={active}: allowed are {top_k} to {experts} for {self.model.name}"
            )

    def _check_cache(self) -> None:
        start = None if self.workload.stream is None else self.workload.stream.cache
        if not self.engine.prefix_cache:
            return
        serving = self.engine.serving
        if start in ("disk", "restarted") and serving.disk is None:
            raise ValueError(f"workload.stream.cache={start}: needs a folder, set engine.serving.disk and disk_bytes")
        if start == "ram" and not serving.ram_bytes:
            raise ValueError("workload.stream.cache=ram: needs engine.serving.ram_bytes above 0")

    @property
    def label(self) -> str:
        """How labels write what runs: our features, or the peer."""
        if self.system == OURS:
            return self.engine.label
        return system_label(self.system, self.peer.implementation)

    @property
    def has_format(self) -> bool:
        """Whether what runs has weights of `precision` at all, on whatever machine."""
        if self.system != OURS:
            return self.precision in peer_of(self.system).types
        return self.precision == "bf16" or self.engine.fused

    @property
    def maps_packed(self) -> bool:
        """Whether packed weights are kept in `model.packed` and mapped from there, on this machine."""
        packs = self.engine.fused or self.engine.packed_dense
        return self.model.packed is not None and packs and self.machine is None

    @property
    def is_quantised(self) -> bool:
        """Whether what runs multiplies quantised weights; base and plain Transformers run bf16 always."""
        if self.system == OURS:
            return self.engine.fused and {self.precision, *self.inject.precisions_of("experts")} != {"bf16"}
        return peer_of(self.system).types.get(self.precision, "bf16").lower() != "bf16"

    @property
    def tolerance(self) -> float:
        """Largest error that passes: of bf16 sums, or of int8 activations on the weights as they are stored."""
        if self.measure.tolerance is not None:
            return self.measure.tolerance
        return 0.03 if self.is_quantised else 0.01

    @property
    def tokens_per_expert(self) -> float:
        """Tokens of a step that an active expert gets on average, were they routed evenly."""
        shape = self.model.shape
        return self.workload.tokens_per_step * shape.top_k / (self.workload.active_experts or shape.experts)

    @property
    def lora(self) -> LoraNumbers:
        """What is trained; nothing with other phases."""
        on, rank = self.workload.adapters, self.workload.lora_rank or 0
        has = {part: on in (part, "both") for part in ("attention", "experts")}
        return self.model.shape.lora_numbers(rank, **has)

    @property
    def dtype(self) -> Dtype:
        """The numbers that the experts' instructions multiply."""
        if not self.is_quantised:
            return "bf16"
        return FORMATS[self.precision].multiplied_as(self.engine.isa or "")

    @property
    def summary(self) -> str:
        """One line that names model, depth, work, precision, and the machine where it is simulated."""
        shape, work = self.model.shape, self.workload
        where = "" if self.machine is None else f", simulated on {self.machine.title}"
        if work.phase == "layer":
            layer = f"one MoE layer of {shape.experts} experts"
            return f"{self.model.name}, {layer}, batch {work.batch}, {self.precision}{where}"
        if work.stream is not None:
            return f"{self.model.name} ({self.model.depth}), {work.stream.summary}, {self.precision}{where}"
        depth = "at context depth" if work.has_context else "of"
        return (
            f"{self.model.name} ({self.model.depth}), {work.phase} {depth} {work.prompt}, batch {work.batch}, "
            f"{self.precision}{where}"
        )

    @property
    def most_at_once(self) -> int:
        """Requests that are served at the same time at most; in an open loop all of them may be there."""
        stream = self.workload.stream
        assert stream is not None
        return min(stream.requests if stream.is_open else stream.concurrency, self.engine.serving.max_sequences)

    @property
    def weights_key(self) -> tuple[object, ...]:
        """Cells with equal keys share one worker: the same weights in the same system and precision."""
        model = tuple(repr(getattr(self.model, f.name)) for f in fields(self.model))
        if self.system != OURS:
            return self._peer_key + model
        engine = self.engine
        roles = (engine.device, engine.roles, engine.device_threads)
        held = (self.precision, self.device_precision, engine.domains, repr(self.inject))
        return (self.system, *held, *roles, *self._kind_of_work, *model)

    @property
    def _peer_key(self) -> tuple[object, ...]:
        types = peer_of(self.system).types
        formats = tuple(types.get(precision, precision) for precision in (self.precision, self.device_precision))
        where = (self.peer.python, self.peer.url, self.peer.served_model)
        return (self.system, *where, *formats, *self._kind_of_work)

    @property
    def _kind_of_work(self) -> tuple[object, ...]:
        """What a worker is for: whole steps, one layer, to serve, or to train certain adapters."""
        phase, work = self.workload.phase, self.workload
        if phase == "train":
            return ("train", self.engine.fused, work.adapters, work.lora_rank)
        return ("serve",) if phase == "serve" else (phase == "layer",)
