"""A machine of paper at work: cost model, task graph, and the executor that plays it."""

from ktbench.sim.cell import simulate
from ktbench.sim.simulation import Simulation

__all__ = ["Simulation", "simulate"]
