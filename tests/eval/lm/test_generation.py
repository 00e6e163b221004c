"""The unmodified engine generates as lm-eval's own `hf` model does on the same checkpoint."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import PreTrainedModel

from ktbench.engine.serving.requests import Sampling
from ktbench.eval.lm.generation import GeneratedText
from ktbench.eval.lm.model import EngineLM
from tests.eval.lm.checkpoints import MAX_LENGTH, Checkpoint, replies, theirs

pytest.importorskip("accelerate", reason="lm-eval's hf model needs it")
pytestmark = pytest.mark.peers

CONTEXT = "question: what is the quick fox? answer:"
LONG = "the lazy dog jumps over " * 9

GENERATED: list[tuple[str, dict[str, Any]]] = [
    (CONTEXT, {"until": [], "max_gen_toks": 9}),
    ("the quick", {"until": ["\n"], "max_new_tokens": 7, "do_sample": False, "temperature": 0.0}),
    (LONG, {"max_gen_toks": 9, "top_k": 0}),
    ("<bos>the lazy", {"max_gen_toks": 7, "num_beams": 1}),
    ("x", {"until": "zz", "max_gen_toks": 9}),
]


def _stops(text: str) -> list[str]:
    """What of an answer may end it: whole characters, several at once where there are."""
    return re.findall(r"[\0-\x7f]{2,3}|[\0-\x7f]", text)[-1:]


@pytest.mark.parametrize("batch", [1, 4])
def test_generate_until(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint, batch: int) -> None:
    ours.batch_size = batch
    assert replies(ours, "generate_until", GENERATED) == replies(
        theirs(network, checkpoint, batch), "generate_until", GENERATED
    )


def test_stop_strings(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Taken from the very answers: they span tokens and begin inside them."""
    ours.batch_size = 4
    whole = replies(ours, "generate_until", GENERATED)
    stopped = [(one[0], one[1] | {"until": _stops(text)}) for one, text in zip(GENERATED, whole, strict=True)]
    seen = replies(ours, "generate_until", stopped)
    assert seen == replies(theirs(network, checkpoint, 4), "generate_until", stopped)
    assert sum(map(len, seen)) < sum(map(len, whole))


def test_a_text_that_ends_itself(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """With every token that the answer has a text that ends: the model's own end, and the tokenizer's."""
    hf = theirs(network, checkpoint)
    requests = [(CONTEXT, {"until": [], "max_gen_toks": 8})]
    prompt = ours.tok_encode(CONTEXT)[8 - MAX_LENGTH :]
    tokens = ours.generator.generate([prompt], [Sampling()], room=8, ended=lambda i, tokens: False)[0]
    configs = (network.generation_config, ours.generator.network.generation_config)
    before = configs[0].eos_token_id
    try:
        for config in configs:
            config.eos_token_id = [tokens[3], before]
        answer = replies(ours, "generate_until", requests)[0]
        assert replies(hf, "generate_until", requests) == [answer]
        assert isinstance(answer, GeneratedText)
        assert answer.tokens == tokens.index(tokens[3]) + 1
    finally:
        for config in configs:
            config.eos_token_id = before


def test_a_penalty_of_the_checkpoint(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Of its generation_config.json, and one that the request sets above it."""
    hf, configs = theirs(network, checkpoint), (network.generation_config, ours.generator.network.generation_config)
    requests = [*GENERATED, (CONTEXT, {"until": [], "max_gen_toks": 9, "repetition_penalty": 3.0})]
    plain = replies(ours, "generate_until", requests)
    try:
        for config in configs:
            config.repetition_penalty = 1.5
        seen = replies(ours, "generate_until", requests)
        assert seen == replies(hf, "generate_until", requests)
        assert seen[:-1] != plain[:-1]
        assert seen[-1] == plain[-1]
    finally:
        for config in configs:
            config.repetition_penalty = None


@pytest.mark.parametrize(
    ("name", "value"), [("no_repeat_ngram_size", 3), ("suppress_tokens", [1]), ("num_beams", 2), ("min_new_tokens", 5)]
)
def test_other_methods_of_the_checkpoint_are_refused(ours: EngineLM, name: str, value: Any) -> None:
    config = ours.generator.network.generation_config
    try:
        setattr(config, name, value)
        with pytest.raises(ValueError, match=f"generation_config.json: {name}="):
            replies(ours, "generate_until", GENERATED[:1])
        assert replies(ours, "loglikelihood", [("the", " fox")])
    finally:
        setattr(config, name, None)


def test_conversations(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    hf = theirs(network, checkpoint)
    conversation = [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "the fox"},
        {"role": "user", "content": "who?"},
    ]
    system = {"role": "system", "content": "be brief"}
    for messages, answers in ((conversation, True), (conversation[:2], False), ([system, *conversation], True)):
        prompt = hf.apply_chat_template(messages, add_generation_prompt=answers)
        assert ours.apply_chat_template(messages, add_generation_prompt=answers) == prompt
        assert ours.tok_encode(prompt) == hf.tok_encode(prompt)
        requests = [(prompt, {"until": [], "max_gen_toks": 3})]
        assert replies(ours, "generate_until", requests) == replies(hf, "generate_until", requests)
    assert ours.chat_template(True) == hf.chat_template(True)
    assert ours.tokenizer_name == hf.tokenizer_name
    assert "be brief" not in ours.apply_chat_template([system, *conversation])
