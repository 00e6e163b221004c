"""The byte tokenizer and the files of a checkpoint, as Transformers reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from examples.nano.model import BOS, EOS, PAD, SPECIALS, VOCABULARY, encode, new_model, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    model = new_model(seed=0, layers=2)
    model.model.layers[0].mlp.gate.e_score_correction_bias[3] = 0.123456789
    save(model, folder)
    save(model, folder)  # an older one is replaced
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


@given(text=st.text())
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assume(not any(special in text for special in SPECIALS))  # spelled out, they stand for themselves
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_specials_are_single_tokens_after_the_bytes(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(256, 256 + len(SPECIALS)))
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, BOS, EOS)
    assert len(tokenizer) <= VOCABULARY


def test_a_text_begins_with_bos(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer("ab")["input_ids"] == [BOS, 97, 98]
    assert tokenizer(["a", "abc"], padding=True)["input_ids"][0].count(PAD) == 2


def test_chat_is_laid_out_by_its_template(tokenizer: PreTrainedTokenizerBase) -> None:
    said = [{"role": "user", "content": "add 1+2= "}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><user>add 1+2= <assistant>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (ids[0], ids[1], ids[-1]) == (BOS, *tokenizer.convert_tokens_to_ids(["<user>", "<assistant>"]))


def test_weights_come_back_in_bfloat16_and_the_balance_in_float32(folder: Path) -> None:
    model, read = new_model(seed=0, layers=2), AutoModelForCausalLM.from_pretrained(folder)
    assert read.dtype == torch.bfloat16
    for (name, one), (_, other) in zip(model.named_parameters(), read.named_parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other), name
    bias = read.model.layers[0].mlp.gate.e_score_correction_bias
    assert bias.dtype == torch.float32
    assert float(bias[3]) == pytest.approx(0.123456789, abs=1e-8)


def test_files_name_the_form_and_no_folder(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.num_experts_per_tok, config.n_shared_experts) == ("deepseek_v3", 8, 1)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [path for path in folder.glob("*.json") if str(folder) in path.read_text()]
