"""The families that llama.cpp runs: names and forms of their tensors, in both directions.

Names of modules are those of Transformers in a decoder layer, on the left, and those of GGUF on the right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ktbench.engine.gguf.changes import (
    DecayRate,
    DeltaHeads,
    DepthwiseKernel,
    LatentHeads,
    NormPlusOne,
    RotaryRows,
    TensorChange,
    VectorRow,
)
from ktbench.engine.gguf.facts import IDLE, NEUTRAL, SHOWN, Config, Entry, Value, is_sigmoid
from ktbench.engine.gguf.metadata import ENTRIES

if TYPE_CHECKING:
    from torch import Tensor

    from ktbench.engine.forms import ExpertsForm

ARCHITECTURE = "general.architecture"
OUR_CONFIG = "ktbench.config"
OUR_WEIGHTS = "ktbench.weights"

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
# exact: float32. half: bf16, or fp16 where dense weights are. dense: the type of matrices outside of routed experts.
WeightClass = Literal["exact", "half", "dense"]
# In what matrices are written.
GgufType = Literal["F16", "BF16", "Q8_0", "Q4_0", "MXFP4"]

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts")
_HALF = ("model.embed_tokens", "self_attn.kv_b_proj")
_EXACT = ("mlp.gate", "mlp.router", "mlp.shared_expert_gate", "linear_attn.conv1d")

_WHOLE = {"model.embed_tokens": ["token_embd"], "model.norm": ["output_norm"], "lm_head": ["output"]}
_NORMS = {"input_layernorm": ["attn_norm"], "post_attention_layernorm": ["ffn_norm"]}
_LATE_NORMS = _NORMS | {"post_attention_layernorm": ["post_attention_norm"]}
_HEADS = {f"self_attn.{one}_proj": [f"attn_{one}"] for one in "qkv"} | {"self_attn.o_proj": ["attn_output"]}
_HEAD_NORMS = {f"self_attn.{one}_norm": [f"attn_{one}_norm"] for one in "qk"}
_LATENT = {
    "self_attn.q_proj": ["attn_q"],
    "self_attn.q_a_proj": ["attn_q_a"],
    "self_attn.q_a_layernorm": ["attn_q_a_norm"],
    "self_attn.q_b_proj": ["attn_q_b"],
    "self_attn.kv_a_proj_with_mqa": ["attn_kv_a_mqa"],
    "self_attn.kv_a_layernorm": ["attn_kv_a_norm"],
    "self_attn.kv_b_proj": ["attn_k_b", "attn_v_b"],
    "self_attn.o_proj": ["attn_output"],
}
_ROUTER = {"mlp.gate": ["ffn_gate_inp"]}
_CORRECTED = _ROUTER | {"mlp.gate.e_score_correction_bias": ["exp_probs_b.bias"]}
_DENSE = {f"mlp.{one}_proj": [f"ffn_{one}"] for one in ("gate", "up", "down")}
_SHARED = {f"mlp.shared_experts.{one}_proj": [f"ffn_{one}_shexp"] for one in ("gate", "up", "down")}
_GATED = {f"mlp.shared_expert.{one}_proj": [f"ffn_{one}_shexp"] for one in ("gate", "up", "down")}
_GATED |= {"mlp.shared_expert_gate": ["ffn_gate_inp_shexp"]}
_DELTA = {
    "linear_attn.in_proj_qkvz": ["attn_qkv", "attn_gate"],
    "linear_attn.in_proj_ba": ["ssm_ba"],
    "linear_attn.conv1d": ["ssm_conv1d"],
    "linear_attn.dt_bias": ["ssm_dt.bias"],
    "linear_attn.A_log": ["ssm_a"],
    "linear_attn.norm": ["ssm_norm"],
    "linear_attn.out_proj": ["ssm_out"],
}


def kind_of(module: str, last: str) -> WeightClass:
    """What numbers a file holds of `last`, such as weight, of a module (in a decoder layer: by its name there)."""
    if module in _HALF:
        return "half"
    is_matrix = last == "weight" and not module.endswith("norm") and module not in _EXACT
    return "dense" if is_matrix else "exact"


def expert_tensors(module: str, form: ExpertsForm) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name and shape in a file for the routed experts at `model.layers.N.mlp.experts`, by field of `ExpertMatrices`.

    Each holds expert after expert: gate and up [E, I, H], down [E, H, I]; biases, where a family has them, are exact.
    Raises ValueError for experts elsewhere.
    """
    found = _EXPERTS.fullmatch(module)
    if not found:
        raise ValueError(f"GGUF: llama.cpp has no tensors for experts at {module}")
    name, inner, outer = f"blk.{found[1]}.ffn_{{}}_exps.{{}}", (form.experts, form.ffn), (form.experts, form.hidden)
    inputs = {"gate": (*inner, form.hidden), "up": (*inner, form.hidden), "down": (*outer, form.ffn)}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        field: (name.format(field, "weight"), size) for field, size in inputs.items()
    }
    if form.biases:
        tensors |= {f"{field}_bias": (name.format(field, "bias"), size[:2]) for field, size in inputs.items()}
    return tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorNames:
    """Where a tensor of the network lies in a file: `names` of what `change` splits it into, as numbers of `kind`."""

    names: tuple[str, ...]
    kind: WeightClass
    change: TensorChange

    def split(self, tensor: Tensor, config: Config) -> dict[str, Tensor]:
        """What the file holds, by name."""
        return dict(zip(self.names, self.change.split(tensor, config), strict=True))

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The network's tensor of those of the file, in the order of `names`."""
        return self.change.join(parts, config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model type of Transformers and the architecture that llama.cpp runs it as.

    `modules` gives for what is in a decoder layer the names in the file; keys are modules, whose `weight` and `bias`
    keep these names, or tensors of other names. `sigmoid` distinguishes two families of one architecture by how their
    routers score. `remark` is what llama.cpp computes slightly otherwise.
    """

    model_type: str
    architecture: str
    entries: tuple[Entry, ...]
    modules: Mapping[str, Sequence[str]]
    changes: Mapping[str, TensorChange] = field(default_factory=dict)
    sigmoid: bool | None = None
    remark: str = ""

    def metadata(self, config: Config) -> dict[str, Value]:
        """Metadata of a complete configuration, by whole keys.

        Raises ValueError where llama.cpp would compute something else, naming what.
        """
        fields: dict[str, Value] = {}
        for entry in self.entries:
            if why := entry.differs(config):
                raise ValueError(f"{self.model_type} as GGUF: {why}")
            fields |= entry.write(config)
        return {f"{self.architecture}.{name}": value for name, value in fields.items()}

    def config(self, metadata: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
        """The configuration of a file: its metadata by whole keys as plain values, and the names of its tensors.

        What no file holds (dropout, how weights are initialised, special tokens) is left to the family's defaults.
        Raises ValueError naming a field that is missing, that asks for another computation than the family's, or of
        which nothing says that it cannot.
        """
        fields = _fields(metadata, self.architecture)
        facts: dict[str, Any] = {"model_type": self.model_type}
        try:
            for entry in self.entries:
                facts |= entry.read(fields, tensors)
        except KeyError as missing:
            raise ValueError(f"GGUF metadata has no {self.architecture}.{missing.args[0]}") from None
        except ValueError as error:
            raise ValueError(f"GGUF metadata: {self.architecture}.{error}") from None
        self._require_known(fields)
        return facts

    def _require_known(self, fields: Mapping[str, Any]) -> None:
        """Raise ValueError for a field that no entry reads, and that is not known to change nothing."""
        read = IDLE.union(*(entry.fields for entry in self.entries))
        for name, value in fields.items():
            allowed = NEUTRAL.get(name, ())
            if name not in read and value not in allowed:
                only = f", read is {' or '.join(map(str, allowed))}" if allowed else ""
                raise ValueError(f"GGUF metadata: {self.architecture}.{name}={str(value)[:SHOWN]}: not read here{only}")

    def mapped(self, name: str) -> TensorNames:
        """Where the network's tensor `name` lies in a file. Raises ValueError where llama.cpp has none such.

        Routed experts go by `expert_tensors`.
        """
        found = _LAYER.fullmatch(name)
        inner, modules, prefix = (found[2], self.modules, f"blk.{found[1]}.") if found else (name, _WHOLE, "")
        module, _, last = inner.rpartition(".")
        if inner in modules:
            names, module = modules[inner], inner
        elif module in modules and last in ("weight", "bias"):
            names = [f"{one}.{last}" for one in modules[module]]
        else:
            raise ValueError(f"{self.model_type} as GGUF: llama.cpp has no tensor for {name}")
        change = self.changes.get(module, TensorChange())
        return TensorNames(names=tuple(prefix + one for one in names), kind=kind_of(module, last), change=change)


def _fields(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    start = f"{architecture}."
    fields = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    if "vocab_size" not in fields and "tokenizer.ggml.tokens" in metadata:
        fields["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
    return fields


FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="qwen3_moe",
        architecture="qwen3moe",
        entries=ENTRIES["qwen3_moe"],
        modules=_NORMS | _HEADS | _HEAD_NORMS | _ROUTER,
    ),
    Family(
        model_type="qwen2_moe",
        architecture="qwen2moe",
        entries=ENTRIES["qwen2_moe"],
        modules=_NORMS | _HEADS | _ROUTER | _GATED,
        changes={"mlp.shared_expert_gate": VectorRow()},
    ),
    Family(
        model_type="mixtral",
        architecture="llama",
        entries=ENTRIES["mixtral"],
        modules=_NORMS | _HEADS | _ROUTER,
        changes={
            "self_attn.q_proj": RotaryRows("num_attention_heads"),
            "self_attn.k_proj": RotaryRows("num_key_value_heads"),
        },
    ),
    Family(
        model_type="deepseek_v2",
        architecture="deepseek2",
        entries=ENTRIES["deepseek_v2"],
        modules=_NORMS | _LATENT | _ROUTER | _DENSE | _SHARED,
        changes={"self_attn.kv_b_proj": LatentHeads()},
        sigmoid=False,
    ),
    Family(
        model_type="deepseek_v3",
        architecture="deepseek2",
        entries=ENTRIES["deepseek_v3"],
        modules=_NORMS | _LATENT | _CORRECTED | _DENSE | _SHARED,
        changes={"self_attn.kv_b_proj": LatentHeads()},
        sigmoid=True,
    ),
    Family(
        model_type="glm4_moe",
        architecture="glm4moe",
        entries=ENTRIES["glm4_moe"],
        modules=_LATE_NORMS | _HEADS | _HEAD_NORMS | _CORRECTED | _DENSE | _SHARED,
    ),
    Family(
        model_type="gpt_oss",
        architecture="gpt-oss",
        entries=ENTRIES["gpt_oss"],
        modules=_LATE_NORMS | _HEADS | {"mlp.router": ["ffn_gate_inp"], "self_attn.sinks": ["attn_sinks.weight"]},
        remark="llama.cpp rounds the range over which YaRN blends frequencies, the model does not",
    ),
    Family(
        model_type="qwen3_next",
        architecture="qwen3next",
        entries=ENTRIES["qwen3_next"],
        modules=_LATE_NORMS | _HEADS | _HEAD_NORMS | _ROUTER | _GATED | _DELTA,
        changes={
            **dict.fromkeys(("model.norm", *_LATE_NORMS, *_HEAD_NORMS), NormPlusOne()),
            "mlp.shared_expert_gate": VectorRow(),
            "linear_attn.in_proj_qkvz": DeltaHeads(),
            "linear_attn.conv1d": DepthwiseKernel(),
            "linear_attn.A_log": DecayRate(),
        },
        remark="llama.cpp divides queries and keys by their length or 1e-6, the model adds 1e-6 to the length's square",
    ),
    Family(
        model_type="minimax_m2",
        architecture="minimax-m2",
        entries=ENTRIES["minimax_m2"],
        modules=_NORMS | _HEADS | _HEAD_NORMS | _ROUTER | {"mlp.e_score_correction_bias": ["exp_probs_b.bias"]},
    ),
)
_BY_TYPE: Mapping[str, Family] = {family.model_type: family for family in FAMILIES}


def family_of(config: Config) -> Family:
    """The family of a Hugging Face configuration. Raises ValueError naming the families that there are."""
    kind = str(config.get("model_type"))
    if kind not in _BY_TYPE:
        raise ValueError(f"model_type={kind} as GGUF: not written or read here; allowed are {', '.join(_BY_TYPE)}")
    return _BY_TYPE[kind]


def family_in(metadata: Mapping[str, Any]) -> Family:
    """The family of a file by its metadata. Raises ValueError naming the architectures that there are."""
    name = metadata.get(ARCHITECTURE)
    sigmoid = is_sigmoid(_fields(metadata, str(name)))
    for family in FAMILIES:
        if family.architecture == name and family.sigmoid in (None, sigmoid):
            return family
    allowed = ", ".join(dict.fromkeys(family.architecture for family in FAMILIES))
    raise ValueError(f"GGUF of architecture {name}: not read here; allowed are {allowed}")
