"""A machine of paper at work: cost model, task graph, and the executor that plays it."""

from ktbench.simulate.cell import simulate
from ktbench.simulate.simulation import Simulation

__all__ = ["Simulation", "simulate"]
