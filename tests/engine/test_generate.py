"""The engine answers as Transformers would: token by token, in padded batches, by recorded steps, with deferral."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.decode.inputs import CACHE
from ktbench.engine.decode.program import StepRecorder
from ktbench.engine.generate import Generator, open_generator
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.serving.requests import Sampling
from ktbench.engine.serving.sampling import SampledAnswer
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec
from tests.engine.engines import FUSED, TOLERANCE, VECTOR, cell, changed, needs_vector, split_cell
from tests.engine.families.plain import Late, build
from tests.engine.families.zoo import ALL, VOCAB, tiny
from tests.engine.tiny import decode

pytestmark = [needs_vector(), pytest.mark.peers]

WORK = decode()
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "dynamic": FUSED | {"dynamic": True},
    "lean": FUSED | {"packed_dense": True},
}
LENGTHS = (9, 4, 12, 6, 7)
Ids = list[list[int]]


def drawn(lengths: tuple[int, ...], seed: int = 1) -> Ids:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=draw).tolist() for length in lengths]


def opened(model: ModelSpec, arms: dict[str, dict[str, Any]] = ARMS) -> Generator:
    return open_generator([cell(model, WORK, **arm) for arm in arms.values()], HostRole(cores=1))


@torch.inference_mode()
def alone(network: PreTrainedModel, prompt: list[int], given: list[int]) -> Tensor:
    """Logits [N, V] before each given token, from one pass over the sequence in plain Transformers."""
    ids = torch.tensor([prompt + given[:-1]])
    logits: Tensor = network(ids, use_cache=False).logits
    return logits[0, len(prompt) - 1 :].float()


def error(seen: Tensor, truth: Tensor) -> float:
    assert torch.isfinite(seen).all()
    return float((seen - truth).norm() / truth.norm())


def stepped(engine: Generator, prompts: Ids, given: Ids, ends: tuple[int, ...]) -> list[Tensor]:
    """Logits of each prompt, those whose time has come dropped from the batch."""
    seen: list[list[Tensor]] = [[] for _ in prompts]

    def choose(logits: Tensor, left: list[SampledAnswer]) -> list[int]:
        tokens = []
        for answer, row in zip(left, logits, strict=True):
            i = answer.sampling.seed
            seen[i].append(row.float().clone())
            tokens.append(given[i][answer.count])
            answer.add(tokens[-1])
        return tokens

    samplings = [Sampling(seed=i) for i in range(len(prompts))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ktbench.engine.generate.TokenChooser.choose", lambda self, *given: choose(*given))
        answers = engine.generate(prompts, samplings, room=max(ends), ended=lambda i, tokens: len(tokens) == ends[i])
    assert answers == [tokens[:end] for tokens, end in zip(given, ends, strict=True)]
    return [torch.stack(rows) for rows in seen]


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
    replay = StepRecorder.replay
    monkeypatch.setattr(StepRecorder, "replay", lambda self: (replays.append(id(self)), replay(self))[1])
    answering.use(cell(model, WORK))
    answering.use(cell(model, WORK, **FUSED, packed_dense=True))
    for seed, lengths in enumerate(((12, 9, 5), (3, 4, 6), (7, 1), (2, 11, 8))):
        prompts, given = drawn(lengths, seed), drawn((5,) * len(lengths), seed + 10)
        for row, prompt, tokens in zip(answering.forced(prompts, given), prompts, given, strict=True):
            assert error(row, alone(network, prompt, tokens)) < TOLERANCE
    assert len(replays) == 4 * 4
    assert len(set(replays)) == 1
    assert answering.notes() == ()


def test_lean_steps_move_the_counter(answering: Generator, model: ModelSpec) -> None:
    answering.use(cell(model, WORK, **FUSED, packed_dense=True))
    before = answering.counters()["linear_calls"]
    answering.generate(drawn((4, 4)), [Sampling()] * 2, room=4, ended=lambda i, tokens: False)
    assert answering.counters()["linear_calls"] > before


def test_facts_of_the_model(answering: Generator) -> None:
    assert answering.eos_ids == frozenset()
    assert answering.max_positions == 512
    answering.network.generation_config.eos_token_id = [3, 5]  # type: ignore[union-attr]
    assert answering.eos_ids == {3, 5}
    answering.network.generation_config.eos_token_id = None  # type: ignore[union-attr]


def test_requests_that_cannot_be_answered(answering: Generator, model: ModelSpec) -> None:
    answering.use(cell(model, WORK, **FUSED))
    never: Any = partial(answering.generate, samplings=[Sampling()] * 2, room=3, ended=lambda i, tokens: False)
    with pytest.raises(ValueError, match="prompt 1 of 2: has no tokens"):
        never([[1], []])
    with pytest.raises(ValueError, match="rows: has no tokens"):
        answering.passed([])
    with pytest.raises(ValueError, match=r"given: has \[1, 2\] tokens"):
        answering.forced([[1], [2]], [[1], [1, 2]])


def test_cells_that_cannot_answer(answering: Generator, model: ModelSpec) -> None:
    split = split_cell(model, WORK)
    with pytest.raises(Unsupported, match="deferral=auto"):
        answering.use(replace(split, engine=replace(split.engine, deferral="auto")))
    placed = replace(split.engine, placement=PlacementSpec(policy="uniform", ratio=0.5))
    with pytest.raises(Unsupported, match="placement"):
        answering.use(replace(split, engine=placed))
    with pytest.raises(ValueError, match="precision=int8"):
        answering.use(cell(model, WORK, **FUSED, precision="int8"))
    with pytest.raises(ValueError, match="is loaded"):
        answering.use(cell(tiny("qwen3_moe"), WORK))
    with pytest.raises(ValueError, match="configure comes before"):
        opened(model, {"base": {}}).passed([[1]])
    with pytest.raises(ValueError, match="system=transformers"):
        open_generator([replace(cell(model, WORK), system="transformers")], HostRole(cores=1))


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return changed("deepseek_v3", **ALL)


@pytest.fixture(scope="module")
def network(model: ModelSpec) -> PreTrainedModel:
    return build(model)


@pytest.fixture(scope="module")
def answering(model: ModelSpec) -> Iterator[Generator]:
    opened_here = opened(model)
    yield opened_here
    opened_here.close()


@torch.inference_mode()
def decoded(
    network: PreTrainedModel, prompt: list[int], given: list[int], before_step: Callable[[int], None]
) -> list[Tensor]:
    """Logits [1, V] before each given token, from one decode step each."""
    output = network(torch.tensor([prompt]), use_cache=True)
    seen = [output.logits[:, -1]]
    for step, token in enumerate(given[:-1]):
        before_step(step)
        output = network(torch.tensor([[token]]), **{CACHE: output[CACHE]}, use_cache=True)
        seen.append(output.logits[:, -1])
    return seen


@pytest.fixture(scope="module", params=["deferral", "skipping"])
def what(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def late_truth(model: ModelSpec, what: str) -> Tensor:
    (prompt,), (given,) = drawn((7,)), drawn((5,), seed=6)
    late = Late(build(model), 5, drop=what == "skipping", anew=True)
    return torch.cat(late.run(lambda begin: decoded(late.network, prompt, given, begin))).float()


@pytest.mark.parametrize("features", ARMS.values(), ids=ARMS)
def test_deferral_and_skipping_act_in_decode(
    answering: Generator,
    network: PreTrainedModel,
    model: ModelSpec,
    late_truth: Tensor,
    features: dict[str, Any],
    what: str,
) -> None:
    (prompt,), (given,) = drawn((7,)), drawn((5,), seed=6)
    answering.use(cell(model, WORK, **features, **{what: 5}))
    before = answering.counters()
    seen = answering.forced([prompt], [given])[0]
    assert error(seen, late_truth) < TOLERANCE
    assert error(seen[1:], alone(network, prompt, given)[1:]) > 2 * TOLERANCE  # or the check above says nothing
    counter = {"deferral": "deferred_experts", "skipping": "skipped_experts"}[what]
    assert answering.counters()[counter] > before[counter]


def test_passes_over_prompts_defer_only_on_request(answering: Generator, model: ModelSpec) -> None:
    row = drawn((9,))
    seen = {}
    for name, features in {
        "whole": {},
        "decode": {"skipping": 6},
        "both": {"skipping": 6, "defer_prefill": True},
    }.items():
        answering.use(cell(model, WORK, **FUSED, **features))
        seen[name] = torch.cat([*answering.passed(row), answering.forced(row, [[1]])[0]])
    assert torch.equal(seen["whole"], seen["decode"])
    assert error(seen["both"], seen["whole"]) > TOLERANCE


# Caches: plain, of windows, of linear attention, a family's own, of indexed attention. The last three are not recorded.
FORMS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "gpt_oss": {"sliding_window": 8},
    "qwen3_next": {"linear_num_value_heads": 8},
    "minimax": {},
    "glm_moe_dsa": {},
}
RECORDED = ("qwen3_moe", "gpt_oss")


@pytest.mark.parametrize("name", FORMS)
def test_families_with_caches_of_every_kind(name: str) -> None:
    """In one batch whose sequences end one after the other."""
    own = changed(name, **(ALL | FORMS[name]))
    network, engine = build(own), opened(own)
    prompts, given, ends = drawn((12, 5, 9)), drawn((4,) * 3, seed=4), (1, 4, 2)
    for features in ARMS.values():
        engine.use(cell(own, WORK, **features))
        for i, seen in enumerate(stepped(engine, prompts, given, ends)):
            assert error(seen, alone(network, prompts[i], given[i][: ends[i]])) < TOLERANCE
    assert bool(engine.notes()) == (name not in RECORDED)
    assert all(f"{VECTOR.mark}+l: steps are not recorded" in note for note in engine.notes())


@pytest.mark.parametrize("engine", [{}, FUSED], ids=["base", "packed"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_answers_end_as_the_folder_says(name: str, engine: dict[str, Any], tmp_path: Path) -> None:
    plain = tiny(name)
    build(plain).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5], "repetition_penalty": 1.5}')
    made = replace(plain, path=str(tmp_path))
    with closing(open_generator([cell(made, WORK, **engine)], HostRole(cores=1))) as generator:
        assert generator.eos_ids == {3, 5}
        assert generator.network.generation_config.repetition_penalty == 1.5
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": ')
    with pytest.raises(ValueError, match="generation_config.json"):
        open_generator([cell(made, WORK, **engine)], HostRole(cores=1))
