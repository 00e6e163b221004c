"""Injected experts in models of Transformers: the same loss and gradients as before, PEFT and Trainer unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ktbench
from ktbench.engine.training.experts import TrainableExperts
from ktbench.engine.weight_plan import Packing
from ktbench.spec.inject import InjectRule, InjectSpec
from tests.engine.training.layers import error
from tests.engine.training.networks import FAMILIES, batch, network

# PEFT and Trainer use what Transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("default")

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ATTENTION = ["q_proj", "v_proj"]
_BF16 = 0.02  # bf16 rounds at 2^-9, each layer a few times


def trainable_experts(model: nn.Module) -> list[TrainableExperts]:
    """Those of a network, layer by layer."""
    return [module for module in model.modules() if isinstance(module, TrainableExperts)]


def gradients(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss and the gradients of what is trained."""
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}
    model.zero_grad()
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_the_model_before(family: str) -> None:
    plain, injected = network(family), ktbench.inject(network(family))
    for model in (plain, injected):
        for name, one in model.named_parameters():
            one.requires_grad_("experts." not in name)
    truth, seen = gradients(plain, batch()), gradients(injected, batch())
    assert len(trainable_experts(injected)) == 2
    assert truth.keys() == seen.keys()
    assert error(seen["loss"], truth["loss"]) < _BF16
    assert (
        error(torch.cat([one.flatten() for one in seen.values()]), torch.cat([one.flatten() for one in truth.values()]))
        < 3 * _BF16
    )


def test_packed_experts_are_in_no_state_dict_and_need_no_memory() -> None:
    model = ktbench.inject(network("qwen3_30b_a3b"))
    assert not [name for name in model.state_dict() if "experts" in name]
    experts = trainable_experts(model)[0]
    assert experts.gate_up_proj.shape == (8, 64, 64)
    assert experts.gate_up_proj.untyped_storage().nbytes() == 2
    with pytest.raises(RuntimeError, match="packed experts"):
        experts.gate_up_proj + 1


def test_rules_for_what_cannot_be_trained_through_are_refused() -> None:
    rules = InjectSpec(name="mine", rules=(InjectRule(name="heads", operator="linear", class_name="Linear"),))
    with pytest.raises(ValueError, match="linear cannot be trained through"):
        ktbench.inject(network("qwen3_30b_a3b"), rules)


def test_rules_may_be_a_file_and_leave_layers_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nrules:\n  - {name: one, operator: experts, module: '.*layers\\.1\\.mlp\\.experts'}\n")
    assert len(trainable_experts(ktbench.inject(network("qwen3_30b_a3b"), file))) == 1


def adapted(model: Any, targets: list[str] = ATTENTION, parameters: list[str] = EXPERTS) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, target_parameters=parameters, init_lora_weights=False
    )
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("family", ["qwen3_30b_a3b", "deepseek_v2_lite", "gpt_oss_20b"])
def test_peft_trains_the_same_factors_with_the_same_gradients(family: str) -> None:
    targets = ["q_proj"]
    plain, injected = adapted(network(family), targets), adapted(ktbench.inject(network(family)), targets)
    truth, seen = gradients(plain, batch()), gradients(injected, batch())
    assert truth.keys() == seen.keys()
    assert any("experts" in name and "lora_A" in name for name in truth)
    for part in ("experts", "q_proj"):
        whole = [torch.cat([one.flatten() for name, one in of.items() if part in name]) for of in (seen, truth)]
        assert error(*whole) < 3 * _BF16


def test_an_adapter_trained_here_is_loaded_by_plain_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    injected = adapted(ktbench.inject(network("qwen3_30b_a3b")))
    optimiser = torch.optim.AdamW([one for one in injected.parameters() if one.requires_grad], lr=1e-2)
    for seed in range(3):
        injected(input_ids=batch(seed), labels=batch(seed)).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    injected.save_pretrained(tmp_path)
    plain = peft.PeftModel.from_pretrained(network("qwen3_30b_a3b"), tmp_path)
    with torch.no_grad():
        truth, seen = plain(input_ids=batch(9)).logits, injected(input_ids=batch(9)).logits
        without = network("qwen3_30b_a3b")(input_ids=batch(9)).logits
    assert error(seen.float(), truth.float()) < _BF16 < error(seen.float(), without.float()) / 3


def test_trainer_trains_the_injected_model(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = adapted(ktbench.inject(network("qwen3_30b_a3b"), packing=Packing(precision="int8")))
    rows = [{"input_ids": row, "labels": row} for row in batch(1)] * 8
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=2,
        learning_rate=2e-2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_steps=3,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert list(tmp_path.glob("checkpoint-*/adapter_model.safetensors"))
