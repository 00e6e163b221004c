"""Tasks of lm-eval, from prompts to filtered answers: the unmodified engine against lm-eval's own `hf` model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from transformers import AutoTokenizer

from ktbench.eval.lm.cli import open_lm
from ktbench.eval.lm.model import EngineLM
from tests.eval.conftest import needs_shared_data
from tests.eval.lm.checkpoints import CORPUS, NAMES, Checkpoint, cell_of, engine_lm, replies
from tests.eval.lm.real import REAL, WORDS, real
from tests.eval.lm.tasks import likelihoods, logged, scored, written

pytest.importorskip("accelerate", reason="lm-eval's hf model needs it")
pytestmark = pytest.mark.peers

# The arithmetic of `hf` is that of the engine's base with these; by default it groups experts and takes the softmax in
# the dtype of the model.
SAME = {"experts_implementation": "eager", "softmax_dtype": "float32"}
MAX_LENGTH = 160
NATS = 1e-3
SETTINGS: dict[str, dict[str, Any]] = {
    "bare": {"num_fewshot": 0},
    "shots": {"num_fewshot": 2},
    "turns": {"num_fewshot": 2, "apply_chat_template": True, "fewshot_as_multiturn": True},
    "system": {
        "num_fewshot": 2,
        "apply_chat_template": True,
        "fewshot_as_multiturn": False,
        "system_instruction": "be brief",
    },
}


@pytest.fixture(scope="module", params=[*NAMES, *(pytest.param(name, marks=needs_shared_data) for name in REAL)])
def checkpoint(
    request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    if request.param in checkpoints:
        return checkpoints[request.param]
    return real(request.param, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def words(checkpoint: Checkpoint) -> list[str]:
    """Those that the checkpoint is likely to say."""
    return (WORDS if len(checkpoint.tokenizer) > 1000 else " ".join(CORPUS)).split()


@pytest.fixture(scope="module")
def ours(checkpoint: Checkpoint) -> Iterator[EngineLM]:
    lm = engine_lm(checkpoint, cell_of(checkpoint), max_length=MAX_LENGTH)
    yield lm
    lm.generator.close()


@pytest.fixture(scope="module", params=[1, 4])
def both(request: pytest.FixtureRequest, ours: EngineLM, checkpoint: Checkpoint) -> tuple[EngineLM, Any]:
    """Our model and theirs, which load and read the checkpoint themselves, with batches of so many."""
    from lm_eval.models.huggingface import HFLM

    ours.batch_size = request.param
    options = {"max_length": MAX_LENGTH, "batch_size": request.param} | SAME
    return ours, HFLM(str(checkpoint.folder), device="cpu", **options)


@pytest.fixture(scope="module")
def stops(ours: EngineLM, words: list[str]) -> list[str]:
    """Strings out of the very answers, which begin and end inside tokens."""
    prompts = [f"Question: {' '.join(words[i : i + 3])}\nAnswer:" for i in range(6)]
    answers = replies(ours, "generate_until", [(prompt, {"until": [], "max_gen_toks": 20}) for prompt in prompts])
    return list(dict.fromkeys(answer[5 + i : 8 + i] for i, answer in enumerate(answers) if len(answer) > 12))[:4]


@pytest.mark.parametrize("setting", SETTINGS)
def test_answers(both: tuple[EngineLM, Any], words: list[str], stops: list[str], setting: str) -> None:
    count = 4
    seen, truth = (logged(lm, written(words, count, stops), **SETTINGS[setting]) for lm in both)
    assert stops
    for name, samples in truth.items():
        assert len(samples) == 2 * count  # of each of two filters
        assert seen[name] == samples, name


@pytest.mark.parametrize("setting", ["bare", "turns"])
def test_likelihoods(both: tuple[EngineLM, Any], words: list[str], setting: str) -> None:
    count = 2 if len(words) == len(WORDS.split()) else 4
    seen, truth = (logged(lm, scored(words, count), **SETTINGS[setting]) for lm in both)
    for name, samples in truth.items():
        for mine, theirs in zip(seen[name], samples, strict=True):
            assert mine["arguments"] == theirs["arguments"]
            (values, greedy), (expected, expected_greedy) = (
                zip(*likelihoods(one), strict=True) for one in (mine, theirs)
            )
            assert values == pytest.approx(expected, abs=NATS)
            assert greedy == expected_greedy
            for metric in mine["metrics"]:
                assert mine[metric] == pytest.approx(theirs[metric], abs=NATS), (name, metric)


@pytest.mark.parametrize("adds", [True, False])
def test_first_tokens_of_a_tokenizer_that_leaves_them_out(checkpoint: Checkpoint, adds: bool, tmp_path: Path) -> None:
    """As a user opens them: `add_bos_token` decides where the files of the tokenizer say otherwise."""
    from lm_eval.models.huggingface import HFLM

    copied = copytree(checkpoint.folder, tmp_path / "copied")
    tokenizer = AutoTokenizer.from_pretrained(copied, add_bos_token=not adds)
    tokenizer.save_pretrained(copied)
    hf = HFLM(str(copied), device="cpu", add_bos_token=adds)
    lm = open_lm({"path": str(copied), "threads": 1, "add_bos_token": adds}, {})
    bos = tokenizer.bos_token or ""
    for text in ("the fox", f"{bos}the fox", "", "é"):
        assert lm.tok_encode(text) == hf.tok_encode(text)
    assert lm.prefix_token_id == hf.prefix_token_id
    lm.generator.close()
