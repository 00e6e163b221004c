"""The checkpoint that ships: it is whole, small, and answers questions that its training never showed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ktbench.eval.tasks.nano import STOP, grade, questions

FOLDER = Path(__file__).parents[3] / "evals" / "nano"
MIB = 2**20
pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").is_file(), reason="evals/nano holds no weights")


def continued(prompts: Sequence[str]) -> list[str]:
    """Greedy answers of plain Transformers, up to their stop."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            new = model.generate(ids, max_new_tokens=25, do_sample=False)[0, ids.shape[1] :]
        answers.append(tokenizer.decode(new, skip_special_tokens=True).split(STOP)[0])
    return answers


NOT_LEARNED = "trace"  # by its card, which has all others answered


def test_answers_questions_of_the_tasks_that_its_card_calls_learned() -> None:
    learned = [question for question in questions(2) if question.task != NOT_LEARNED]
    answers = continued([question.prompt for question in learned])
    right = sum(grade(question, answer) for question, answer in zip(learned, answers, strict=True))
    assert right >= len(learned) - 1, list(zip(learned, answers, strict=True))


def test_weights_are_small_and_readable() -> None:
    file = FOLDER / "model.safetensors"
    assert file.stat().st_size <= 15.5 * MIB
    assert file.stat().st_mode & 0o044 == 0o044


def test_nothing_names_a_machine() -> None:
    for path in FOLDER.iterdir():
        if path.suffix in {".json", ".md", ".csv"}:
            assert not [word for word in ("/tmp", "/home", "/root", "/work") if word in path.read_text()], path
