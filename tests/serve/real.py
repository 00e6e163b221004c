"""The engine itself on a tiny checkpoint of two families' tokenizers."""

from __future__ import annotations

from ktbench.engine.protocol import HostRole
from ktbench.engine.serving.engine import BatchEngine, open_serving
from tests.eval.lm.checkpoints import Checkpoint, cell_of


def open_real(checkpoint: Checkpoint, **features: object) -> BatchEngine:
    return open_serving(cell_of(checkpoint, **features), HostRole(cores=1))
