"""Random checkpoints with tokenizers of released models, whose likeliest tokens are words of a text."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.spec.run_spec import ModelSpec
from tests.engine.engines import changed
from tests.engine.families.plain import build
from tests.eval.conftest import SHARED
from tests.eval.lm.checkpoints import Checkpoint

TOKENIZERS = SHARED / "tokenizers"
# Name -> family, and vocabulary of TOKENIZERS: bytes that are merged, and pieces, whose first one loses its blank.
REAL = {"deepseek_v3 deepseek": ("deepseek_v3", "deepseek-coder"), "mixtral llama": ("mixtral", "llama-spm")}
TEMPLATE = "deepseek_v3_tokenizer_config.json"
WORDS = (
    "Question: what is the city but the people?\nAnswer: the answer is (B). So we proceed, no further!\n\n"
    "Citizens: speak; 12 + 34 = 46. The gods know I speak this in hunger for bread - not in thirst. Café, “naïve” 東京"
)


def real(name: str, folder: Path) -> Checkpoint:
    """The checkpoint of a name in REAL; of all tokens those of WORDS alone have logits other than 0."""
    family, vocabulary = REAL[name]
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS, gguf_file=f"ggml-vocab-{vocabulary}.gguf")
    tokenizer.chat_template = json.loads((TOKENIZERS / TEMPLATE).read_text())["chat_template"]
    network = build(changed(family, vocab_size=len(tokenizer), initializer_range=0.3))
    head = network.get_output_embeddings().weight.data
    others = torch.ones(len(head), dtype=torch.bool)
    others[tokenizer.encode(WORDS, add_special_tokens=False)] = False
    head[others] = 0
    network.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    network.config.eos_token_id = tokenizer.eos_token_id
    network.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = inspect_checkpoint(folder)
    layers, vocab = config["num_hidden_layers"], config["vocab_size"]
    model = ModelSpec(name=family, config=config, full_layers=layers, full_vocab=vocab, path=str(folder))
    return Checkpoint(model=model, tokenizer=AutoTokenizer.from_pretrained(folder), folder=folder)
