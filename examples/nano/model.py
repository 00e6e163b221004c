"""The nano model: configuration, byte tokenizer, experts that train fast, and how a checkpoint is saved.

T tokens, H hidden size, E experts, I intermediate size.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

from ktbench.eval.tasks.nano_questions import STOP

SPECIALS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>")  # ids from 256 on, after the 256 bytes
PAD, BOS, EOS = 256, 257, 258
VOCABULARY = 272  # bytes and specials, rounded up to a multiple of 16
CHAT = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def nano_config(layers: int = 12) -> DeepseekV3Config:
    """DeepSeek-V3's form, 128 wide: 32 routed experts of 32, top-8, one shared expert in every layer."""
    return DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=32,
        num_experts_per_tok=8,
        first_k_dense_replace=0,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        q_lora_rank=None,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        max_position_embeddings=16384,
        num_mtp_layers=0,
        initializer_range=0.05,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )


def encode(text: str) -> list[int]:
    """Token ids of a text: its UTF-8 bytes."""
    return list(text.encode())


def save(model: DeepseekV3ForCausalLM, folder: Path) -> None:
    """Write model (bfloat16, one safetensors file), configurations and tokenizer; an older checkpoint is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    stop = [EOS, *encode(STOP)]
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=BOS, eos_token_id=stop, pad_token_id=PAD, do_sample=False, max_new_tokens=32
    )
    weights = {name: _stored(name, value) for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)
    config = model.config.to_dict() | {"dtype": "bfloat16", "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG, indent=2) + "\n")


def _stored(name: str, value: torch.Tensor) -> torch.Tensor:
    """The balancing bias keeps its float32, as in DeepSeek-V3's own checkpoint; all else is bfloat16."""
    kept = value if name.endswith("e_score_correction_bias") else value.to(torch.bfloat16)
    return kept.contiguous()


def _tokenizer() -> Tokenizer:
    letters = bytes_to_unicode()  # type: ignore[no-untyped-call]
    vocabulary = {letters[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
    )
    return tokenizer


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "model_max_length": 16384,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT,
}


class GroupedExperts(nn.Module):
    """Takes the place of `DeepseekV3Experts`, with its parameters; counts in `loads` [E] the tokens each was given."""

    def __init__(self, experts: DeepseekV3Experts) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = experts.gate_up_proj, experts.down_proj
        self.loads = torch.zeros(experts.num_experts)

    def forward(self, x_TH: Tensor, ids: Tensor, weights: Tensor) -> Tensor:  # noqa: N803
        """The weighted sum of the chosen experts [T, H]; ids and weights are [T, k]."""
        order = ids.flatten().argsort(stable=True)  # rows of one expert lie together
        counts = torch.bincount(ids.flatten(), minlength=len(self.loads))
        self.loads += counts
        tokens, ends = order // ids.shape[1], counts.cumsum(0).int()
        # Twice as fast on a CPU as indexing with [], above all backwards.
        rows, gates = x_TH.index_select(0, tokens), weights.flatten().index_select(0, order)
        gate, up = functional.grouped_mm(rows, self.gate_up_proj.mT, offs=ends).chunk(2, dim=-1)
        inner = functional.silu(gate) * up * gates[:, None]
        return torch.zeros_like(x_TH).index_add(0, tokens, functional.grouped_mm(inner, self.down_proj.mT, offs=ends))


def group_experts(model: DeepseekV3ForCausalLM) -> list[GroupedExperts]:
    """Put `GroupedExperts` into every layer; returns them in the order of layers."""
    for layer in model.model.layers:
        layer.mlp.experts = GroupedExperts(layer.mlp.experts)
    return [layer.mlp.experts for layer in model.model.layers]


@torch.no_grad()
def balance(model: DeepseekV3ForCausalLM, step: float) -> None:
    """Move each expert's bias by `step` towards the mean load and clear the loads (DeepSeek-V3, section 2.1.2)."""
    for layer in model.model.layers:
        loads = layer.mlp.experts.loads
        layer.mlp.gate.e_score_correction_bias += step * (loads.mean() - loads).sign()
        loads.zero_()


def new_model(seed: int, layers: int = 12) -> DeepseekV3ForCausalLM:
    """An untrained nano model in float32."""
    torch.manual_seed(seed)
    model = DeepseekV3ForCausalLM(nano_config(layers))
    model.train()
    return model
