"""The example of fine-tuning: few lines, TRL's own trainer, a loss that falls, an adapter that the engine runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.engine.training.adapter_folder import require_adapter

for library in ("peft", "trl"):
    pytest.importorskip(library, reason=f"{library} is not installed")


@pytest.mark.filterwarnings("default")
def test_the_loss_falls_and_the_adapter_is_peft_s(tmp_path: Path) -> None:
    from examples import sft_nano

    losses = sft_nano.main(str(tmp_path), steps=3)
    assert losses[-1] < 0.9 * losses[0]
    require_adapter(str(tmp_path))
