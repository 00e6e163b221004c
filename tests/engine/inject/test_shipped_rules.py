"""The shipped rules on every known architecture: what they replace, derived from the modules without any pattern."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ktbench.config.inject import read_rules
from ktbench.engine.inject.match import match_rules
from ktbench.resources import data_folder
from tests.engine.inject.networks import sliced
from tests.engine.tiny import NAMES

RULES = data_folder("conf") / "inject"
LEAN, EXPERTS = (read_rules(RULES / f"{name}.yaml") for name in ("lean", "experts"))


# Families of latent attention, which reads the weight of one of its layers.
LATENT, READ = ("DeepseekV2Attention", "DeepseekV3Attention"), "kv_b_proj"
# Families of plain heads, whose rotary embedding is one for all layers; families that choose by softmax alone.
PLAIN_HEADS = ("Qwen2Moe", "Qwen3Moe", "Mixtral", "Glm4Moe")
BY_SOFTMAX = ("Qwen2Moe", "Qwen3Moe", "Mixtral", "Olmoe")


def chosen(network: nn.Module, choosing: set[str]) -> dict[str, str]:
    """Operator by module name: by type and by sizes, apart from what is inside a router, and gates of one output."""
    found = {}
    for name, module in network.named_modules():
        kind = type(module).__name__
        if name in choosing and kind.startswith(BY_SOFTMAX):
            found[name] = "router"
        if name.startswith(tuple(choosing)):
            continue
        if kind.startswith(PLAIN_HEADS) and kind.endswith(("Attention", "RotaryEmbedding")):
            found[name] = "attention" if kind.endswith("Attention") else "rotary"
        elif kind in LATENT:
            found[name] = "latent_attention"
        elif kind.endswith("Experts") and hasattr(module, "gate_up_proj"):
            found[name] = "experts"
        elif name.endswith(("shared_expert", "shared_experts")):
            found[name] = "shared"
        elif isinstance(module, nn.Linear) and module.out_features > 1 and not name.endswith(READ):
            found[name] = "linear"
        elif kind.endswith("RMSNorm"):
            found[name] = "rms_norm"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_lean_replaces_what_a_step_spends_time_in_and_nothing_that_chooses(name: str) -> None:
    network = sliced(name)
    routers = {n for n, module in network.named_modules() if type(module).__name__.endswith("Router")}
    assert routers
    found = {one.name: one.operator.name for one in match_rules(network, LEAN)}
    assert found == chosen(network, routers)
    kept = {n for n, operator in found.items() if operator != "router"}
    assert not {n for n in kept if n.rpartition(".")[2] in ("gate", "router", "shared_expert_gate")}
    assert "lm_head" in found


@pytest.mark.parametrize("name", NAMES)
def test_experts_replaces_the_routed_experts_of_every_moe_layer_alone(name: str) -> None:
    network = sliced(name)
    found = match_rules(network, EXPERTS)
    assert {one.operator.name for one in found} == {"experts"}
    assert [one.name for one in found] == [n for n, m in network.named_modules() if n.endswith("mlp.experts")]
    assert len(found) == 2


# Families whose routers, gates, shared experts or norms are called or built differently from those in conf/model.
OTHERS = {
    "afmoe": ({"num_hidden_layers": 3}, "router.gate"),
    "qwen3_next": ({"num_hidden_layers": 4}, "shared_expert_gate"),
    "longcat_flash": ({"num_layers": 1, "zero_expert_num": 0}, "router.classifier"),
    "deepseek_v32": ({"num_hidden_layers": 4}, "indexer.weights_proj"),
    "zaya": ({"num_hidden_layers": 4}, "gate.down_proj"),
    "inkling_text": ({"num_hidden_layers": 3}, "gate"),
    "jamba": ({"num_hidden_layers": 8}, "mamba.dt_proj"),
    "gemma4_text": (
        {
            "num_hidden_layers": 6,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
        },
        "router.proj",
    ),
}


@pytest.mark.parametrize("family", OTHERS)
def test_lean_leaves_what_chooses_in_other_families_too(family: str) -> None:
    sizes, kept = OTHERS[family]
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    found = {one.name: one.operator.name for one in match_rules(network, LEAN)}
    names = [name for name, _ in network.named_modules()]
    assert any(name.endswith(f".{kept}") for name in names)
    assert not [name for name in found if name.endswith(f".{kept}")]
    assert {name for name, operator in found.items() if operator == "experts"} == {
        name for name in names if name.endswith(".experts")
    }


def test_a_family_whose_experts_are_built_differently_is_named_with_what_differs() -> None:
    config = AutoConfig.for_model("llama4_text", num_hidden_layers=1)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"rule experts: experts does not fit .*\(Llama4TextExperts\), which "):
        match_rules(network, LEAN)
