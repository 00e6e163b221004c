"""Noise of many kinds for cells that are equal: what a verdict must not be fooled by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ktbench.spec.cells import drawn_order

Array = NDArray[np.float64]
# (random generator, number of turns) -> how much slower than 1 s each turn is, turn after turn in time
Noise = Callable[[np.random.Generator, int], Array]


def quiet(rng: np.random.Generator, turns: int) -> Array:
    return np.asarray(np.exp(rng.normal(0, 0.01, turns)))


def loud(rng: np.random.Generator, turns: int) -> Array:
    return np.asarray(np.exp(rng.normal(0, 0.2, turns)))


def heavy_tails(rng: np.random.Generator, turns: int) -> Array:
    """Pareto with infinite variance: mostly nothing, sometimes tenfold."""
    return np.asarray(1 + 0.05 * rng.pareto(1.2, turns))


def warming(rng: np.random.Generator, turns: int) -> Array:
    """A machine that slows down by half from the first turn to the last."""
    return np.asarray(np.linspace(1, 1.5, turns) * np.exp(rng.normal(0, 0.02, turns)))


def wandering(rng: np.random.Generator, turns: int) -> Array:
    """A random walk, as under a neighbour's load."""
    return np.asarray(np.exp(np.cumsum(rng.normal(0, 0.02, turns))))


def moved(rng: np.random.Generator, turns: int) -> Array:
    """A hypervisor that moves the cores now and then: two speeds, a third apart."""
    state = np.cumsum(rng.random(turns) < 0.1) % 2
    return np.asarray((1 + 0.3 * state) * np.exp(rng.normal(0, 0.01, turns)))


def waves(rng: np.random.Generator, turns: int) -> Array:
    """A period close to the length of a round."""
    phase = rng.uniform(0, 2 * np.pi)
    return np.asarray((1 + 0.05 * np.sin(phase + np.arange(turns) / 1.3)) * np.exp(rng.normal(0, 0.02, turns)))


NOISES: tuple[Noise, ...] = (quiet, loud, heavy_tails, warming, wandering, moved, waves)


def rounds(rng: np.random.Generator, noise: Noise, cells: int, count: int) -> Array:
    """Times [count, cells] of cells that take turns in drawn orders."""
    taken, seed = noise(rng, cells * count).reshape(count, cells), str(rng.integers(2**32))
    times = np.empty_like(taken)
    for number, row in enumerate(taken):
        times[number, [*drawn_order(cells, number, seed)]] = row
    return times
