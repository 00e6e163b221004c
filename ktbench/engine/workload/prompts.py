"""Token ids of prompts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def prompt_ids(vocab: int, batch: int, tokens: int, seed: int) -> NDArray[np.int64]:
    """Uniform token ids [batch, tokens], each below `vocab`: equal arguments give equal ids on any machine.

    Raises ValueError where a size is below 1.
    """
    for name, value in (("vocab", vocab), ("batch", batch), ("tokens", tokens)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    return np.random.default_rng(seed).integers(vocab, size=(batch, tokens), dtype=np.int64)


def prompt_padding(batch: int, prompt: int, shortest: int | None) -> NDArray[np.int64]:
    """Positions of padding [batch] before each prompt: lengths go evenly from `prompt` down to `shortest`."""
    lengths = np.linspace(prompt, shortest or prompt, batch)
    return prompt - np.round(lengths).astype(np.int64)
