"""Tiny checkpoints of two families: one reads bytes after a token that begins texts, one merges and has no such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole
from ktbench.eval.lm.model import EngineLM
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.engine.engines import cell, changed
from tests.engine.families.plain import build
from tests.engine.tiny import decode

NAMES = ("deepseek_v3", "qwen3_moe")
MAX_LENGTH = 48
SPECIALS = ["<pad>", "<bos>", "<eos>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "question: what is it? answer: the other thing"] * 4
CHAT = (
    "{{ bos_token or '' }}{% for message in messages %}{% if message['role'] == 'system' and not system %}"
    "{{ raise_exception('no system here') }}{% endif %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model in its folder, and the tokenizer that lies beside it."""

    model: ModelSpec
    tokenizer: PreTrainedTokenizerFast
    folder: Path


def written(name: str, folder: Path) -> Checkpoint:
    """The checkpoint of a family; its tokenizer knows as many tokens as the model."""
    tokenizer = byte_tokenizer() if name == "deepseek_v3" else merging_tokenizer()
    model = changed(name, vocab_size=len(tokenizer), initializer_range=0.3)
    network = build(model)
    network.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    network.config.eos_token_id = tokenizer.eos_token_id
    network.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Checkpoint(model=_at(model, folder), tokenizer=tokenizer, folder=folder)


def _at(model: ModelSpec, folder: Path) -> ModelSpec:
    from ktbench.engine.checkpoint import inspect_checkpoint

    vocab = model.shape.vocab
    config = inspect_checkpoint(folder)
    return ModelSpec(name=model.name, config=config, full_layers=4, full_vocab=vocab, path=str(folder))


def shipped() -> Checkpoint:
    """The nano model, which was trained: what it answers is seldom as likely as something else."""
    from ktbench.engine.checkpoint import inspect_checkpoint

    folder = Path(__file__).parents[3] / "evals" / "nano"
    config = inspect_checkpoint(folder)
    layers, vocab = config["num_hidden_layers"], config["vocab_size"]
    model = ModelSpec(name="nano", config=config, full_layers=layers, full_vocab=vocab, path=str(folder))
    return Checkpoint(model=model, tokenizer=PreTrainedTokenizerFast.from_pretrained(folder), folder=folder)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte; texts begin with a token of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate([*alphabet, *SPECIALS])}, merges=[]))
    whole.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", len(alphabet) + 1)]
    )
    return _fast(whole, bos_token="<bos>")


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and pairs of them that a corpus has often."""
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    whole.train_from_iterator(CORPUS, trainer)
    return _fast(whole)


def _fast(whole: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<eos>", pad_token="<pad>", **special)
    tokenizer.chat_template = CHAT
    return tokenizer


def cell_of(checkpoint: Checkpoint, **features: Any) -> RunSpec:
    return cell(checkpoint.model, decode(), **features)


def engine_lm(checkpoint: Checkpoint, *cells: RunSpec, **options: Any) -> EngineLM:
    """The engine that holds what these cells need, and answers as the first of them."""
    lm = EngineLM(open_generator(cells, HostRole(cores=1)), checkpoint.tokenizer, **options)
    lm.use(cells[0])
    return lm


def replies(lm: Any, kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Replies to requests of one kind."""
    requests = [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]  # type: ignore[arg-type]
    replies: list[Any] = getattr(lm, kind)(requests)
    return replies


def theirs(network: PreTrainedModel, checkpoint: Checkpoint, batch: int = 1, **options: Any) -> Any:
    """lm-eval's own model on the same checkpoint."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(network, tokenizer=checkpoint.tokenizer, batch_size=batch, **({"max_length": MAX_LENGTH} | options))
