"""`model.adapter`: merged into a checkpoint before it is packed; what is no adapter is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ktbench.engine.checkpoint import read_checkpoint
from ktbench.engine.loading.weights_id import weights_id
from ktbench.engine.training.adapter_folder import require_adapter
from ktbench.spec.run_spec import ModelSpec
from tests.engine.tiny import tiny_model
from tests.engine.training.layers import error
from tests.engine.training.networks import batch, network


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    """A checkpoint of the tiny model, and an adapter for its attention and its experts."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    network("qwen3_30b_a3b").save_pretrained(tmp_path / "model")
    torch.manual_seed(5)
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=experts, init_lora_weights=False)
    peft.get_peft_model(network("qwen3_30b_a3b"), config).save_pretrained(tmp_path / "adapter")
    return replace(tiny_model(path=str(tmp_path / "model")), adapter=str(tmp_path / "adapter"))


@pytest.mark.filterwarnings("default")
def test_a_merged_adapter_gives_the_logits_of_plain_peft(model: ModelSpec) -> None:
    import peft

    plain = peft.PeftModel.from_pretrained(network("qwen3_30b_a3b"), model.adapter)
    with torch.no_grad():
        truth, seen = (one(input_ids=batch()).logits.float() for one in (plain, read_checkpoint(model)))
        without = read_checkpoint(replace(model, adapter=None))(input_ids=batch()).logits.float()
    assert error(seen, truth) < 0.02 < error(without, truth)
    assert weights_id(model) != weights_id(replace(model, adapter=None))


@pytest.mark.filterwarnings("default")
def test_an_adapter_of_another_model_is_refused(model: ModelSpec, tmp_path: Path) -> None:
    network("deepseek_v2_lite").save_pretrained(tmp_path / "other")
    other = replace(tiny_model("deepseek_v2_lite", path=str(tmp_path / "other")), adapter=model.adapter)
    with pytest.raises(ValueError, match="model.adapter=.*: PEFT cannot load it"):
        read_checkpoint(other)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("lost", ["layers.1.", "base_model."], ids=["one layer", "all by another name"])
def test_an_adapter_without_its_factors_is_refused(model: ModelSpec, lost: str) -> None:
    file = Path(str(model.adapter)) / "adapter_model.safetensors"
    factors = load_file(file)
    save_file({name.replace(lost, "another."): one for name, one in factors.items()}, file)
    with pytest.raises(ValueError, match="model.adapter=.*: PEFT cannot load it .*missing"):
        read_checkpoint(model)


def test_a_folder_that_is_no_adapter_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no adapter_config.json there"):
        require_adapter(str(tmp_path))
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    with pytest.raises(ValueError, match="peft_type=IA3, allowed is LORA"):
        require_adapter(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": None}, "set model.path"),
        ({"path": "x.gguf"}, "is for a Hugging Face folder"),
        ({"packed": "elsewhere"}, "leave out model.packed"),
        ({"adapter": ""}, "name a folder"),
    ],
)
def test_models_without_weights_to_merge_into_are_refused(changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(tiny_model(path="folder"), **({"adapter": "mine"} | changes))
