"""Examples to fine-tune on: what a file may hold, what is held out, which tokens count, and what training teaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples.nano.rotate import text
from ktbench.cli import main
from ktbench.engine.protocol import Diverged, HostRole, Unsupported
from ktbench.engine.training.completions import Sequences, Task, completes, drawn_batches
from ktbench.engine.training.examples import Examples, read_examples
from ktbench.resources import checkpoint_folder
from ktbench.run.check import check, check_the_check, stale
from ktbench.run.request import read_request
from ktbench.spec.record import Learning, Outcome
from ktbench.spec.run_spec import RunSpec
from tests.drawing import few_of
from tests.engine.families.plain import build
from tests.engine.tiny import tiny_model

SHIPPED = "evals/nano/rotate.jsonl"
NANO = "evals/nano"
GOOD = {"prompt": "one ", "completion": "two"}


def written(folder: Path, *lines: str) -> str:
    file = folder / "examples.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def rows(count: int, completion: str = "ok") -> Iterator[str]:
    return (json.dumps({"prompt": f"colour {number}: ", "completion": completion}) for number in range(count))


def test_the_shipped_file_is_what_the_script_makes() -> None:
    assert checkpoint_folder(SHIPPED).read_text(encoding="utf-8") == text()


def test_shipped_examples_are_right_and_a_part_is_held_out() -> None:
    found = read_examples(SHIPPED)
    every = [*found.training, *found.held_out]
    words = [one.prompt.removeprefix("rotate ").removesuffix(": ") for one in every]
    assert [one.completion for one in every] == [word[2:] + word[:2] for word in words]
    assert len({*words}) == len(words)
    assert len(found.held_out) == pytest.approx(len(every) / 8, rel=0.2)


def test_what_is_held_out_depends_on_the_prompt_alone(tmp_path: Path) -> None:
    def held_out(found: Examples) -> set[str]:
        return {one.prompt for one in found.held_out}

    forth = held_out(read_examples(written(tmp_path, *rows(64))))
    back = held_out(read_examples(written(tmp_path, *reversed([*rows(64, "other")]))))
    assert forth == back


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "Expected object"),
        ('{"prompt": "one "}', "completion"),
        ('{"prompt": 1, "completion": "two"}', "prompt"),
        ('{"prompt": "one ", "completion": ""}', "completion"),
        ('{"prompt": "", "completion": "two"}', "prompt"),
    ],
)
def test_what_is_no_example_is_named_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    file = written(tmp_path, *rows(30), line)
    with pytest.raises(ValueError, match=why) as refused:
        read_examples(file)
    assert f"{file} line 31:" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_too_few_examples_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        read_examples(written(tmp_path, json.dumps(GOOD)))
    with pytest.raises(ValueError, match="No such file"):
        read_examples(str(tmp_path / "none.jsonl"))


def test_tokens_of_prompts_and_of_padding_do_not_count(tmp_path: Path) -> None:
    task = Task.read(written(tmp_path, *rows(40, "wxyz")), NANO, 24)
    row, labels = task.training.ids[0].tolist(), task.training.labels[0].tolist()
    end, begin = row.index(258), row.index(ord("w"))
    assert bytes(row[begin:end]) == b"wxyz"
    assert labels == [-100] * begin + row[begin : end + 1] + [-100] * (23 - end)
    positions = torch.arange(24.0).expand(len(task.training), 24)[..., None]
    assert task.training.at_prompt_ends(positions)[0] == begin - 1


def test_an_example_longer_than_a_sequence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="workload.prompt=8"):
        Task.read(written(tmp_path, *rows(40)), NANO, 8)


def test_batches_go_through_all_examples_before_any_comes_again() -> None:
    ids = torch.arange(10)[:, None]
    batches = drawn_batches(Sequences(ids=ids, labels=ids), steps=5, batch=4, seed=3)
    drawn = torch.cat([batch.ids for batch in batches]).flatten().tolist()
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    other = drawn_batches(Sequences(ids=ids, labels=ids), steps=5, batch=4, seed=4)
    assert drawn != torch.cat([batch.ids for batch in other]).flatten().tolist()


class Fixed(nn.Module):
    """A network that gives the logits that it is made with."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self._logits = iter(logits.split(2))

    def forward(self, **_inputs: Any) -> Any:
        return type("Output", (), {"logits": next(self._logits)})


def test_the_loss_is_the_cross_entropy_of_the_completions_by_hand() -> None:
    """Three sequences of four tokens out of five, of which two, one and two are learned."""
    ids = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 0], [1, 1, 4, 0]])
    labels = torch.tensor([[-100, -100, 2, 3], [-100, 3, -100, -100], [-100, 1, 4, -100]])
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    logits[1, 0, 3], logits[2, 0, 1], logits[2, 1, 4] = 9.0, 9.0, -9.0
    nats = [
        -float(logits[row, at - 1].double().softmax(0)[labels[row, at]].log())
        for row, at in ((0, 2), (0, 3), (1, 1), (2, 1), (2, 2))
    ]
    found = completes(Fixed(logits), Sequences(ids=ids, labels=labels), 2, torch.device("cpu"))
    first = all(int(logits[0, at - 1].argmax()) == labels[0, at] for at in (2, 3))
    assert found.loss == pytest.approx(sum(nats) / 5)
    assert (found.exact, found.examples) == (pytest.approx((1 + first) / 3), 3)


def test_a_held_out_loss_that_is_not_finite_is_no_result() -> None:
    ids = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(Diverged, match="held-out"):
        completes(Fixed(torch.full((1, 2, 3), float("nan"))), Sequences(ids=ids, labels=ids), 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workload.examples=none.jsonl",), "workload.examples=none.jsonl: No such file"),
        (("workload.examples=bad.jsonl",), "workload.examples=bad.jsonl line 2: not JSON"),
        (("workload.examples=",), "workload.examples=: name a file"),
        (("workload.examples=bad.jsonl", "model=tiny"), "set model.path=FOLDER or model=nano"),
    ],
)
def test_examples_that_cannot_be_learned_are_refused_before_anything_loads(
    words: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text(f"{json.dumps(GOOD)}\n{{\n")
    assert main(["run", "model=nano", "workload=train", *words]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert len(said.err.splitlines()) == 1


STEPS = 24
WORDS = ("model=nano", "workload=train", f"workload.steps={STEPS}", "workload.batch=8", "workload.prompt=20")
FEW = "workload.adapters=attention"  # steps of it take less
VECTOR = ("engine.avx512=true", "precision=int8")


def nano_spec(file: str, *words: str) -> RunSpec:
    return read_request([*WORDS, f"workload.examples={file}", *words]).parts[0].spec


def opened(spec: RunSpec) -> Any:
    pytest.importorskip("peft", reason="peft is not installed")
    from ktbench.engine.training.load import load_training

    if spec.engine.avx512:
        from ktbench import _kernels

        if why := _kernels.grants()["avx512"]:
            pytest.skip(why)
    system = load_training(spec, HostRole(cores=1))
    system.configure(spec)
    return system


def trained(system: Any, steps: int = STEPS) -> Learning:
    system.start()
    for _ in range(steps):
        system.step()
    found = system.learning()
    assert isinstance(found, Learning)
    return found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("options", few_of([(), VECTOR], {VECTOR}))
def test_training_teaches_what_was_not_shown(tmp_path: Path, options: tuple[str, ...]) -> None:
    spec = nano_spec(written(tmp_path, *rows(64)), FEW, *options)
    system = opened(spec)
    learned = trained(system)
    losses = system.parts().losses
    assert losses[-1] < 0.2 * losses[0]
    assert learned.after.loss < 0.2 * learned.before.loss
    assert learned.before.exact == 0
    assert learned.after.exact > 0.5
    timed, seen = system.logits(), system.observe()
    assert check(seen, system.reference, spec.tolerance).outcome is Outcome.OK
    assert check_the_check(seen, system.reference, spec.tolerance) == ""
    assert stale(timed, system.logits(), 0.05) == ""
    assert system.parts().losses == pytest.approx(losses, rel=1e-3)  # the last step was repeated alone


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model that learns nothing in no time, and the nano model's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    build(tiny_model(vocab_size=272)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoint_folder(NANO) / name).read_bytes())
    return str(folder)


@pytest.mark.filterwarnings("default")
def test_a_seed_begins_alike_in_all_arms_and_decides_what_is_learned(tiny: str, tmp_path: Path) -> None:
    file, model = written(tmp_path, *rows(64)), f"model.path={tiny}"
    few = (model, "workload.steps=6")
    plain, ours = opened(nano_spec(file, *few)), opened(nano_spec(file, *few, *VECTOR))
    first = losses_of(plain, nano_spec(file, *few))
    assert losses_of(ours, nano_spec(file, *few, *VECTOR)) == pytest.approx(first, rel=0.02)
    assert losses_of(plain, nano_spec(file, *few, "workload.seed=1")) != pytest.approx(first, rel=0.001)


@pytest.mark.filterwarnings("default")
def test_a_training_is_repeated_exactly_whatever_the_schedule(tiny: str, tmp_path: Path) -> None:
    file, model = written(tmp_path, *rows(64)), f"model.path={tiny}"
    dynamic, static = (
        nano_spec(file, model, "workload.steps=6", *VECTOR, f"engine.dynamic={on}") for on in ("true", "false")
    )
    system = opened(dynamic)
    assert losses_of(system, dynamic) == losses_of(system, static) == losses_of(system, dynamic)


def losses_of(system: Any, spec: RunSpec) -> tuple[float, ...]:
    """Of all steps."""
    system.configure(spec)
    for _ in range(spec.workload.steps):
        system.step()
    found: tuple[float, ...] = system.parts().losses
    return found
