"""The engine answers as Transformers would: token by token, in padded batches, by recorded steps, with deferral."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ktbench.engine.decode.program import Program
from ktbench.engine.generate import Generator, Sampling, open_generator
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec
from tests.engine.answers import ARMS, LENGTHS, WORK, alone, drawn, error, opened, stepped
from tests.engine.engines import TOLERANCE, cell, needs_avx512
from tests.engine.families.plain import build
from tests.engine.families.zoo import VOCAB, tiny

pytestmark = [needs_avx512(), pytest.mark.peers]


@pytest.fixture(params=ARMS)
def arm(request: pytest.FixtureRequest, answering: Generator, model: ModelSpec) -> Generator:
    answering.use(cell(model, WORK, **ARMS[request.param]))
    return answering


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe"])
def test_base_generates_what_transformers_generates(name: str) -> None:
    """With the routers' own choice, token for token."""
    own, network = tiny(name), build(tiny(name))
    engine = opened(own, {"base": {}})
    engine.use(cell(own, WORK))
    for prompt in drawn((9, 1)):
        truth = network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=8, pad_token_id=0)  # type: ignore[operator]
        seen = engine.generate([prompt], [Sampling()], room=8, ended=lambda i, tokens: False)
        assert seen[0] == truth[0, len(prompt) :].tolist()


def test_forced_tokens_are_predicted_as_in_one_pass(arm: Generator, network: PreTrainedModel) -> None:
    prompts, given = drawn(LENGTHS), drawn((6,) * len(LENGTHS), seed=2)
    seen = arm.forced(prompts, given)
    assert seen.shape == (len(prompts), 6, VOCAB)
    for row, prompt, tokens in zip(seen, prompts, given, strict=True):
        assert error(row, alone(network, prompt, tokens)) < TOLERANCE


def test_passed_rows_are_predicted_as_alone(arm: Generator, network: PreTrainedModel) -> None:
    rows = drawn(LENGTHS)
    for row, logits, last in zip(rows, arm.passed(rows), arm.passed(rows, [3] * len(rows)), strict=True):
        truth = alone(network, row[:1], [*row[1:], 0])
        assert logits.dtype == torch.float32
        assert error(logits, truth) < TOLERANCE
        assert error(last, truth[-3:]) < TOLERANCE


@pytest.mark.parametrize("ends", [(2, 7, 1, 7, 3), (1, 1, 1, 1, 1)], ids=str)
def test_sequences_that_go_on_do_not_feel_who_ended(
    arm: Generator, network: PreTrainedModel, ends: tuple[int, ...]
) -> None:
    prompts, given = drawn(LENGTHS), drawn((7,) * len(LENGTHS), seed=3)
    for i, seen in enumerate(stepped(arm, prompts, given, ends)):
        assert error(seen, alone(network, prompts[i], given[i][: ends[i]])) < TOLERANCE


def test_one_recording_serves_batch_after_batch(
    answering: Generator, network: PreTrainedModel, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []
    replay = Program.replay
    monkeypatch.setattr(Program, "replay", lambda self: (replays.append(id(self)), replay(self))[1])
    answering.use(cell(model, WORK))
    answering.use(cell(model, WORK, avx512=True, packed_dense=True))
    for seed, lengths in enumerate(((12, 9, 5), (3, 4, 6), (7, 1), (2, 11, 8))):
        prompts, given = drawn(lengths, seed), drawn((5,) * len(lengths), seed + 10)
        for row, prompt, tokens in zip(answering.forced(prompts, given), prompts, given, strict=True):
            assert error(row, alone(network, prompt, tokens)) < TOLERANCE
    assert len(replays) == 4 * 4
    assert len(set(replays)) == 1
    assert answering.notes() == ()


def test_lean_steps_move_the_counter(answering: Generator, model: ModelSpec) -> None:
    answering.use(cell(model, WORK, avx512=True, packed_dense=True))
    before = answering.counters()["linear_calls"]
    answering.generate(drawn((4, 4)), [Sampling()] * 2, room=4, ended=lambda i, tokens: False)
    assert answering.counters()["linear_calls"] > before


def test_facts_of_the_model(answering: Generator) -> None:
    assert answering.eos_ids == frozenset()
    assert answering.max_positions == 512
    answering.network.generation_config.eos_token_id = [3, 5]  # type: ignore[union-attr]
    assert answering.eos_ids == {3, 5}
    answering.network.generation_config.eos_token_id = None  # type: ignore[union-attr]


def test_what_cannot_be_asked(answering: Generator, model: ModelSpec) -> None:
    answering.use(cell(model, WORK, avx512=True))
    never: Any = partial(answering.generate, samplings=[Sampling()] * 2, room=3, ended=lambda i, tokens: False)
    with pytest.raises(ValueError, match="prompt 1 of 2: has no tokens"):
        never([[1], []])
    with pytest.raises(ValueError, match="rows: has no tokens"):
        answering.passed([])
    with pytest.raises(ValueError, match=r"given: has \[1, 2\] tokens"):
        answering.forced([[1], [2]], [[1], [1, 2]])


def test_cells_that_cannot_answer(answering: Generator, model: ModelSpec) -> None:
    split = cell(model, WORK, avx512=True, threads=None, roles="split")
    with pytest.raises(Unsupported, match="deferral=auto"):
        answering.use(replace(split, engine=replace(split.engine, deferral="auto")))
    placed = replace(split.engine, placement=PlacementSpec(policy="uniform", ratio=0.5))
    with pytest.raises(Unsupported, match="placement"):
        answering.use(replace(split, engine=placed))
    with pytest.raises(ValueError, match="precision=int8"):
        answering.use(cell(model, WORK, avx512=True, precision="int8"))
    with pytest.raises(ValueError, match="is loaded"):
        answering.use(cell(tiny("qwen3_moe"), WORK))
    with pytest.raises(ValueError, match="configure comes before"):
        opened(model, {"base": {}}).passed([[1]])
    with pytest.raises(ValueError, match="system=transformers"):
        open_generator([replace(cell(model, WORK), system="transformers")], HostRole(cores=1))
