"""A training by Transformers' own Trainer on an injected model, ended after a step, in a process as by `kill -9`.

`python -m tests.engine.training.interrupted FOLDER STEP`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback, TrainingArguments

import ktbench
from ktbench.engine.weight_plan import Packing
from tests.engine.training.networks import network

STEPS, _KEPT_EVERY = 6, 2
_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class Ended(TrainerCallback):
    """Calls `end` after a step, and counts those before."""

    def __init__(self, after: int, end: Callable[[], None]) -> None:
        self._after, self._end, self.done = after, end, 0

    def on_step_end(self, _arguments: Any, state: Any, _control: Any, **_others: Any) -> None:
        """See TrainerCallback."""
        self.done += 1
        if state.global_step == self._after:
            self._end()


def interrupt() -> None:
    raise KeyboardInterrupt


def trained(
    folder: Path, ended_after: int = 0, end: Callable[[], None] = interrupt, *, resume: bool = False
) -> tuple[int, list[float]]:
    """Steps done, and the loss of each, those before a checkpoint in the folder included."""
    torch.manual_seed(0)
    injected = ktbench.inject(network("qwen3_30b_a3b"), packing=Packing(precision="int8"), kernels={"isa": "reference"})
    lora = LoraConfig(r=4, target_modules=["q_proj"], target_parameters=_EXPERTS)
    draw = torch.Generator().manual_seed(0)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(200, (32, 12), generator=draw)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=_KEPT_EVERY,
        logging_steps=1,
        learning_rate=5e-3,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    ended = Ended(ended_after, end)
    trainer = Trainer(get_peft_model(injected, lora), arguments, train_dataset=rows, callbacks=[ended])
    trainer.train(resume_from_checkpoint=resume or None)
    return ended.done, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    trained(Path(sys.argv[1]), int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
