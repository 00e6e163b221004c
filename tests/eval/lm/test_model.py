"""The unmodified engine scores texts as lm-eval's own `hf` model does on the same checkpoint."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from ktbench.engine.serving.requests import Sampling
from ktbench.eval.lm.model import EngineLM
from tests.eval.lm.checkpoints import MAX_LENGTH, Checkpoint, replies, theirs

pytest.importorskip("accelerate", reason="lm-eval's hf model needs it")
pytestmark = pytest.mark.peers

# Where it takes the softmax in float32; else it rounds log-probabilities to bf16, as its model's logits are.
EXACT = {"softmax_dtype": "float32"}
ROUNDING = 1e-3
CONTEXT = "question: what is the quick fox? answer:"
LONG = "the lazy dog jumps over " * 9
PAIRS = [
    (CONTEXT, " the"),
    (CONTEXT, " fox"),  # shares all but its last token with the one above where texts are bytes
    (CONTEXT, " other thing"),
    (CONTEXT, " other thing"),
    ("a context that ends with a blank ", "dog"),
    ("", "the quick brown"),
    ("x", "y"),
    (LONG, " over"),
    (LONG + "and more", " the quick brown fox"),
]
TEXTS = ["the quick brown fox", LONG, "é ü 漢字", "", "<bos>the quick"]


@pytest.mark.parametrize("batch", [1, 4])
def test_loglikelihood(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint, batch: int) -> None:
    ours.batch_size = batch
    hf = theirs(network, checkpoint, batch, **EXACT)
    truth, seen = replies(hf, "loglikelihood", PAIRS), replies(ours, "loglikelihood", PAIRS)
    for (one, is_greedy), (expected, expected_greedy) in zip(seen, truth, strict=True):
        assert one == pytest.approx(expected, rel=ROUNDING)
        assert is_greedy == expected_greedy
    assert len({round(one, 3) for one, _ in seen}) == len(PAIRS) - 1


def test_what_greedy_decoding_gives_is_marked(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    prompt = ours.tok_encode("the fox")
    greedy = ours.generator.generate([prompt], [Sampling()], room=3, ended=lambda i, tokens: False)[0]
    requests = [
        (("", str(i)), prompt, one) for i, one in enumerate((greedy, [*greedy[:2], greedy[2] - 1], [1, *greedy[1:]]))
    ]
    seen = ours._loglikelihood_tokens(requests)
    truth = theirs(network, checkpoint, **EXACT)._loglikelihood_tokens(requests)
    assert [is_greedy for _, is_greedy in seen] == [is_greedy for _, is_greedy in truth] == [True, False, False]


@pytest.mark.parametrize("batch", [1, 4])
def test_loglikelihood_rolling(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint, batch: int) -> None:
    ours.batch_size = batch
    texts = [(text,) for text in TEXTS]
    truth = replies(theirs(network, checkpoint, batch, **EXACT), "loglikelihood_rolling", texts)
    assert replies(ours, "loglikelihood_rolling", texts) == pytest.approx(truth, rel=ROUNDING)


@pytest.mark.parametrize("adds", [True, False])
def test_first_token_on_demand(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint, adds: bool) -> None:
    hf, requests = theirs(network, checkpoint, add_bos_token=adds), [("the quick", {"until": [], "max_gen_toks": 4})]
    lm = EngineLM(ours.generator, checkpoint.tokenizer, add_bos_token=adds, max_length=MAX_LENGTH)
    for text in TEXTS:
        assert lm.tok_encode(text) == hf.tok_encode(text)
    assert replies(lm, "generate_until", requests) == replies(hf, "generate_until", requests)
    assert (lm.prefix_token_id, lm.eot_token_id) == (hf.prefix_token_id, hf.eot_token_id)


def test_longest_text_by_default(ours: EngineLM, network: PreTrainedModel, checkpoint: Checkpoint) -> None:
    assert (
        EngineLM(ours.generator, checkpoint.tokenizer).max_length
        == theirs(network, checkpoint, max_length=None).max_length
    )
