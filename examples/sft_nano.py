"""Fine-tune the nano model with TRL on words whose first letters go to the end: `python -m examples.sft_nano OUT`."""

from __future__ import annotations

import sys

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import ktbench
from ktbench.engine.training.examples import read_examples
from ktbench.engine.weight_plan import Packing
from ktbench.resources import checkpoint_folder

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def rows() -> Dataset:
    """Prompts and completions that ship, those for evaluation left out."""
    training = read_examples("evals/nano/rotate.jsonl").training
    return Dataset.from_list([{"prompt": one.prompt, "completion": one.completion} for one in training])


def main(out: str, steps: int = 60) -> list[float]:
    """The losses, by step; the adapter is in `out`."""
    folder = checkpoint_folder("evals/nano")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    model = ktbench.inject(plain, packing=Packing(precision="int8"))
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "o_proj"], target_parameters=EXPERTS)
    often = {"max_steps": steps, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False}
    arguments = SFTConfig(output_dir=out, learning_rate=2e-3, per_device_train_batch_size=16, **often)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = SFTTrainer(model, arguments, train_dataset=rows(), processing_class=tokenizer, peft_config=lora)
    trainer.train()
    trainer.save_model(out)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(sys.argv[1])
