"""Errors of arrays, and the output of one MoE layer in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.forms import ExpertMatrices


def relative(seen: NDArray[Any], truth: NDArray[Any]) -> float:
    """Norm of the error over that of the truth."""
    return float(np.linalg.norm(seen - truth) / np.linalg.norm(truth))


def exact_output(store: Callable[[int], ExpertMatrices], prepared: Any) -> NDArray[np.float64]:
    """[T, H] float64: what the experts of a store give for the hidden states and routing of a prepared step."""
    hidden, ids, gates = (t.double().numpy() for t in (prepared.hidden, prepared.routing.ids, prepared.routing.gates))
    total = np.zeros_like(hidden)
    for i in np.unique(ids):
        expert = store(int(i))
        gate, up, down = (m.double().numpy() for m in (expert.gate, expert.up, expert.down))
        for token, column in np.argwhere(ids == i):
            score = gate @ hidden[token]
            total[token] += gates[token, column] * (down @ (score / (1 + np.exp(-score)) * (up @ hidden[token])))
    return total
