"""The training loop: it learns, repeats itself bit for bit, and its parts are what they stand for."""

from __future__ import annotations

import csv
import io
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

from examples.nano.data import (
    DRILL,
    IGNORED,
    example,
    forced_accuracy,
    judged_questions,
    loss,
    padded,
    parts,
    recall,
    training_questions,
)
from examples.nano.model import BOS, PAD, GroupedExperts, balance, group_experts, nano_config, new_model
from examples.nano.optimizer import Muon, orthogonal
from examples.nano.train import train
from examples.nano.training import Training, teams
from ktbench.eval.tasks.nano_questions import LEVELS, TASKS, Question

ROWS = 8
SPAWN = multiprocessing.get_context("spawn")
ASKED = Question(category="math", task="addition", level=1, prompt="1+2= ", answer="3", content="1,2")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def after(steps: int, seed: int = 0) -> tuple[list[float], list[Tensor]]:
    work = Training(new_model(seed, layers=2), steps=8, seed=seed)
    losses = [work.advance(ROWS) for _ in range(steps)]
    return losses, [parameter.detach() for parameter in work.model.parameters()]


@pytest.fixture(scope="module")
def trained() -> tuple[list[float], list[Tensor]]:
    return after(4)


def test_loss_falls_from_chance(trained: tuple[list[float], list[Tensor]]) -> None:
    losses, _ = trained
    assert losses[0] == pytest.approx(math.log(272), rel=0.1)
    assert losses[-1] < losses[0] - 0.05


def test_the_seed_gives_the_same_weights_bit_for_bit(trained: tuple[list[float], list[Tensor]]) -> None:
    losses, weights = after(4)
    assert losses == trained[0]
    assert all(torch.equal(one, other) for one, other in zip(weights, trained[1], strict=True))
    assert after(1, seed=1)[0] != trained[0][:1]


def test_a_team_trains_what_one_does_alone(trained: tuple[list[float], list[Tensor]]) -> None:
    works = [Training(new_model(0, layers=2), steps=8, seed=0, team=team) for team in teams(SPAWN, 2, 2_000_000)]
    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(lambda work: [work.advance(ROWS) for _ in range(4)], works))
    assert losses == [trained[0]] * 2
    for work in works:
        weights = work.model.parameters()
        assert all(torch.equal(one, other) for one, other in zip(weights, trained[1], strict=True))


def test_sums_of_a_team_are_the_same_for_all() -> None:
    tensors = [[torch.full((2, 3), rank + 1.0), torch.tensor([10.0 * rank])] for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda team: team.add_up(tensors[team.rank]), teams(SPAWN, 2, 7)))
    for first, second in tensors:
        assert (first == 3).all()
        assert second.tolist() == [10.0]


def test_labels_are_the_answer_and_its_stop() -> None:
    ids, labels = example(ASKED)
    assert ids == [BOS, *b"1+2= ", *b"3"]
    assert labels == [IGNORED] * 5 + [*b"3\n"]


def test_a_batch_is_cut_by_length_and_padded_behind() -> None:
    batch = parts(training_questions(0), 32)
    lengths = [(ids != PAD).sum(1) for ids, _ in batch]
    assert sum(len(ids) for ids, _ in batch) == 32
    assert lengths[0].max() <= lengths[1].min()
    for (ids, labels), length in zip(batch, lengths, strict=True):
        assert ids.shape == labels.shape
        assert int(length.max()) == ids.shape[1]
        assert all((row[n:] == PAD).all() for row, n in zip(ids, length, strict=True))
        assert ((ids != PAD) | (labels == IGNORED)).all()


def test_padding_and_prompt_take_no_part_in_the_loss() -> None:
    model = new_model(0, layers=1)
    group_experts(model)
    short, longer = example(ASKED), example(next(TASKS[8].drawn(Random(1), 3)))
    apart = sum(loss(model, *padded([row])).item() for row in (short, longer))
    assert loss(model, *padded([short, longer])).item() == pytest.approx(apart, rel=1e-4)


def test_an_answer_counts_only_whole() -> None:
    model = new_model(0, layers=1)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[ord("3")] = 1.0
        model.model.norm.weight.zero_()
    assert forced_accuracy(model, [ASKED]) == 0.0  # all logits are equal: byte 0 is the likeliest


@pytest.mark.parametrize("tokens", [1, 40])
def test_grouped_experts_equal_transformers_own_in_float32(tokens: int) -> None:
    torch.manual_seed(3)
    own = DeepseekV3Experts(nano_config(1))
    for parameter in own.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, weights = torch.randn(tokens, 128, requires_grad=True), torch.rand(tokens, 8, requires_grad=True)
    ids = torch.stack([torch.randperm(32)[:8] for _ in range(tokens)])
    grouped = GroupedExperts(own)
    found, wanted = grouped(x, ids, weights), own(x, ids, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    inputs = [x, weights, own.gate_up_proj, own.down_proj]
    gradients = torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert grouped.loads.tolist() == torch.bincount(ids.flatten(), minlength=32).tolist()


def test_balance_lifts_idle_experts_and_lowers_busy_ones() -> None:
    model = new_model(0, layers=1)
    (experts,) = group_experts(model)
    experts.loads[:] = 10.0
    experts.loads[4], experts.loads[9] = 0.0, 20.0
    balance(model, 0.5)
    bias = model.model.layers[0].mlp.gate.e_score_correction_bias
    assert (float(bias[4]), float(bias[9]), float(bias[0])) == (0.5, -0.5, 0.0)
    assert not experts.loads.any()


@pytest.mark.parametrize("shape", [(3, 32, 128), (2, 128, 32), (1, 64, 96)])
def test_orthogonal_keeps_directions_and_levels_singular_values(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    found = orthogonal(matrices.float()).double()
    inner = u.mT @ found @ v.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.3
    assert float((inner - torch.diag_embed(values)).abs().max()) < 1e-3


def test_muon_treats_a_stack_matrix_by_matrix() -> None:
    generator = torch.Generator().manual_seed(2)
    stack = torch.nn.Parameter(torch.zeros(3, 8, 16))
    stack.grad = torch.randn(3, 8, 16, generator=generator)
    apart = [torch.nn.Parameter(torch.zeros(8, 16)) for _ in range(3)]
    for parameter, gradient in zip(apart, stack.grad, strict=True):
        parameter.grad = gradient.clone()
    Muon([stack]).step()
    Muon(apart).step()
    torch.testing.assert_close(stack.detach(), torch.stack([one.detach() for one in apart]), rtol=1e-4, atol=1e-6)


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    work = Training(new_model(0, layers=1), steps=1000, seed=0)
    rates = []
    for work.step in range(1000):
        rates.append(work.rate())
    assert rates[0] == pytest.approx(0.01)
    assert rates[99:601] == [1.0] * 502
    assert rates[800] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.01


def test_training_takes_tasks_in_turn_and_shows_nothing_held_out() -> None:
    shown = [question for question in islice(training_questions(0), 4000) if question.category != DRILL]
    assert len(shown) == 3000
    assert [q.task for q in shown[:24]] == [task.name for task in TASKS] * 2
    assert not any(question.held_out for question in shown)


def test_all_levels_are_shown_once_the_basics_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.nano.data.BASICS", 1200)
    shown = list(islice(training_questions(0), 1600 + 2400))
    assert Counter(q.task for q in shown[:1600])["recall"] == 400
    assert {q.level for q in shown[:1600]} == {1, 2}
    every = {(task.name, level) for task in TASKS for level in LEVELS}
    assert {(q.task, q.level) for q in shown[1600:]} == every


def test_training_judges_itself_by_what_it_never_shows() -> None:
    asked = judged_questions()
    assert asked == judged_questions()
    assert all(question.held_out for question in asked)
    assert len({(q.task, q.level) for q in asked}) == len(TASKS) * len(LEVELS)


def test_every_fourth_example_is_a_drill_until_the_basics_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.nano.data.BASICS", 6)
    drilled = [question.category == DRILL for question in islice(training_questions(0), 20)]
    assert drilled == [False, False, False, True] * 2 + [False] * 12


@given(seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_a_drill_asks_for_its_own_pairs(seed: int) -> None:
    drill = recall(Random(seed))
    pairs = drill.prompt.removeprefix("recall ").removesuffix(": ").split()
    assert sorted(drill.answer.split()) == sorted(pairs)
    assert len({pair[0] for pair in pairs}) == len(pairs)


def test_training_is_repeated_by_its_seed() -> None:
    assert (
        list(islice(training_questions(5), 50))
        == list(islice(training_questions(5), 50))
        != list(islice(training_questions(6), 50))
    )


def test_an_interrupted_training_goes_on_bit_for_bit(trained: tuple[list[float], list[Tensor]]) -> None:
    first = Training(new_model(0, layers=2), steps=8, seed=0)
    losses = [first.advance(ROWS) for _ in range(2)]
    second = Training(new_model(1, layers=2), steps=8, seed=0)
    second.resume(copied(first.state()), ROWS)
    losses += [second.advance(ROWS) for _ in range(2)]
    assert losses == trained[0]
    assert all(torch.equal(one, other) for one, other in zip(second.model.parameters(), trained[1], strict=True))
    assert second.tokens > first.tokens > 0
    assert second.cpu_s > first.cpu_s > 0


def copied(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file)
    return loaded


def test_the_state_of_another_training_is_refused() -> None:
    state = Training(new_model(0, layers=1), steps=8, seed=0).state()
    with pytest.raises(ValueError, match="of 8 steps, this one has 9"):
        Training(new_model(0, layers=1), steps=9, seed=0).resume(state, ROWS)


def test_an_interrupted_command_continues_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.nano.train.LOG_EVERY", 1)
    monkeypatch.setattr("examples.nano.train.JUDGE_EVERY", 2)
    monkeypatch.setattr("examples.nano.train.new_model", lambda seed: new_model(seed, layers=1))
    monkeypatch.setattr("examples.nano.train.judged_questions", lambda: [ASKED])
    monkeypatch.setattr("examples.nano.training.time.process_time", count(1.0).__next__)
    with monkeypatch.context() as broken:
        broken.setattr("examples.nano.train.judge", stopping_at(4))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, 5, 0)
    train(tmp_path, 5, 0)
    with (tmp_path / "training.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 3, 4, 5]  # the third was lost with its state
    seconds = [float(row["cpu_seconds"]) for row in rows]
    assert seconds[1] < seconds[3] < seconds[4] < seconds[5]
    assert not list(tmp_path.glob("state-*"))
    assert (tmp_path / "model.safetensors").is_file()


def stopping_at(call_step: int) -> Callable[..., dict[str, float]]:
    """A judge that is interrupted the second time, at step `call_step`."""
    calls: list[int] = []

    def judged(*_: object) -> dict[str, float]:
        calls.append(call_step)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {}

    return judged
