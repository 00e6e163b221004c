"""The training loop: it learns, repeats itself bit for bit, and its parts are what they stand for."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

from ktbench.eval.nano.batches import IGNORED, example, forced_accuracy, loss, padded, parts
from ktbench.eval.nano.checkpoint import BOS, PAD, nano_config
from ktbench.eval.nano.experts import WideExperts, balance, use_wide_experts
from ktbench.eval.nano.math import addition
from ktbench.eval.nano.optimizer import Muon, orthogonal
from ktbench.eval.nano.question import Question
from ktbench.eval.nano.tasks import training
from ktbench.eval.nano.team import teams
from ktbench.eval.nano.training import Training, new_model

ROWS = 8
SPAWN = multiprocessing.get_context("spawn")
ASKED = Question(category="math", task="addition", prompt="1+2= ", answer="3")


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
    batch = parts(training(0), 32)
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
    use_wide_experts(model)
    short, longer = example(ASKED), example(addition(Random(1)))
    apart = sum(loss(model, *padded([row])).item() for row in (short, longer))
    assert loss(model, *padded([short, longer])).item() == pytest.approx(apart, rel=1e-2)  # bfloat16


def test_an_answer_counts_only_whole() -> None:
    model = new_model(0, layers=1)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[ord("3")] = 1.0
        model.model.norm.weight.zero_()
    assert forced_accuracy(model, [ASKED]) == 0.0  # all logits are equal: byte 0 is the likeliest


@pytest.mark.parametrize("tokens", [1, 40])
def test_wide_experts_equal_transformers_own_in_float32(tokens: int) -> None:
    torch.manual_seed(3)
    own = DeepseekV3Experts(nano_config(1))
    for parameter in own.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, weights = torch.randn(tokens, 128, requires_grad=True), torch.rand(tokens, 8, requires_grad=True)
    ids = torch.stack([torch.randperm(32)[:8] for _ in range(tokens)])
    wide = WideExperts(own)
    found, wanted = wide(x, ids, weights), own(x, ids, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    inputs = [x, weights, own.gate_up_proj, own.down_proj]
    gradients = torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert wide.loads.tolist() == torch.bincount(ids.flatten(), minlength=32).tolist()


def test_balance_lifts_idle_experts_and_lowers_busy_ones() -> None:
    model = new_model(0, layers=1)
    (experts,) = use_wide_experts(model)
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


def test_the_rate_rises_and_falls_to_nothing() -> None:
    work = Training(new_model(0, layers=1), steps=1000, seed=0)
    rates = []
    for work.step in range(1000):
        rates.append(work.rate())
    assert rates[0] == pytest.approx(0.01)
    assert rates.index(max(rates)) in (99, 100)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] < 1e-4
