"""Bytes of tokens, for tokenizers of both kinds, against what the tokenizers themselves decode."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ktbench.serve.tokens import TextTokens
from ktbench.spec.errors import RequestError

TEXTS = ["the cat sat on the mat", "déjà vu, déjà là", "日本語の文字", "cats and mats 🎈🎈"]
BYTES = [f"<0x{one:02X}>" for one in range(256)]


def fast(made: Tokenizer) -> PreTrainedTokenizerFast:
    made.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    made.add_tokens([AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def by_level() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    return fast(made)


@pytest.fixture(scope="module")
def by_fallback() -> PreTrainedTokenizerFast:
    letters = sorted({*"".join(TEXTS).replace(" ", "▁")} - {"🎈"})
    words = ["▁t", "▁th", "▁the", "at", "▁m"]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", *BYTES, *letters, *words]))}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("a", "t"), ("▁", "m")]
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return fast(made)


@pytest.mark.parametrize("kind", ["by_level", "by_fallback"])
@pytest.mark.parametrize("text", [*TEXTS, "mat<think>cat"])
def test_bytes_of_tokens_are_the_text(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    tokens = TextTokens(tokenizer, frozenset())
    ids = tokens.encode(text)
    assert b"".join(map(tokens.piece, ids)).decode() == text
    assert tokens.text(ids) == text == tokenizer.decode(ids, skip_special_tokens=True)
    starts = [len(b"".join(map(tokens.piece, ids[:at])).decode(errors="ignore")) for at in range(len(ids))]
    assert tokens.offsets(text, ids) == starts


@given(ids=st.lists(st.integers(0, 302), max_size=20))
def test_any_tokens_are_decoded_as_by_the_tokenizer(by_level: PreTrainedTokenizerFast, ids: list[int]) -> None:
    tokens = TextTokens(by_level, frozenset())
    shown = b"".join(map(tokens.shown, ids)).decode(errors="replace")
    assert shown == by_level.decode(ids, skip_special_tokens=True)


def test_special_tokens_have_bytes_and_are_not_shown(by_level: PreTrainedTokenizerFast) -> None:
    tokens, end = TextTokens(by_level, frozenset()), by_level.eos_token_id
    assert (tokens.piece(end), tokens.shown(end)) == (b"</s>", b"")
    assert tokens.piece(100_000) == tokens.piece(-1) == b""


@pytest.mark.parametrize(
    ("text", "ids", "starts"),
    [
        ("hé", (257, *"hé".encode()), [0, 0, 1, 1]),
        ("<bos>h", (257, ord("h")), [0, 5]),
        ("a<eos>b", (257, ord("a"), 258, ord("b")), [0, 0, 1, 6]),
    ],
)
def test_tokens_of_a_text_begin_where_they_stand_in_it(
    tokens: TextTokens, text: str, ids: tuple[int, ...], starts: list[int]
) -> None:
    """What the tokenizer adds has no width; what the text names has that of its name."""
    assert tokens.encode(text) == ids
    assert tokens.offsets(text, ids) == starts


def test_a_space_that_the_tokenizer_adds_is_not_in_the_text(by_fallback: PreTrainedTokenizerFast) -> None:
    tokens, ids = TextTokens(by_fallback, frozenset()), by_fallback.convert_tokens_to_ids(["▁the", "▁m", "at"])
    assert tokens.offsets("the mat", ids) == [0, 3, 5]


def test_a_prompt_that_begins_as_the_tokenizer_begins_gets_no_second_token(tokens: TextTokens) -> None:
    assert tokens.encode("hi") == tokens.encode("<bos>hi") == (257, *b"hi")


def test_answers_end_by_the_checkpoints_own_configuration(tokens: TextTokens) -> None:
    assert tokens.stop_ids == {258, 10}


def test_answers_end_by_config_json_where_there_is_no_other(tmp_path: Path, tokens: TextTokens) -> None:
    folder = copytree(
        "evals/nano", tmp_path / "nano", ignore=ignore_patterns("*.safetensors", "generation_config.json")
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [258, 99]}))
    assert TextTokens.open(str(folder)).stop_ids == {258, 99}
    assert TextTokens.open(str(folder)).defaults == {}
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "max_new_tokens": 5}')
    found = TextTokens.open(str(folder))
    assert (found.stop_ids, found.defaults) == ({258, 99}, {"temperature": 0.6, "top_k": 20})
    (folder / "generation_config.json").write_text('{"top_p": 7.5}')
    with pytest.raises(RequestError, match="top_p=7.5"):
        TextTokens.open(str(folder))


def test_a_conversation_is_what_the_template_makes_of_it(tokens: TextTokens) -> None:
    assert tokens.chat([{"role": "user", "content": "hi"}]) == (257, 259, *b"hi", 260)


def test_without_a_template_there_are_no_conversations(by_level: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="chat template"):
        TextTokens(by_level, frozenset()).chat([{"role": "user", "content": "hi"}])


def test_what_a_template_refuses_is_said(by_level: PreTrainedTokenizerFast) -> None:
    by_level.chat_template = "{{ raise_exception('roles have to alternate') }}"
    with pytest.raises(ValueError, match="roles have to alternate"):
        TextTokens(by_level, frozenset()).chat([{"role": "user", "content": "hi"}])
    by_level.chat_template = None


def test_words_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="byte"):
        TextTokens(fast(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))), frozenset())


def test_a_tokenizer_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RequestError, match="tokenizer"):
        TextTokens.open(str(tmp_path))
