"""The only room that knows Hydra: overrides in, frozen specs out."""

from ktbench.config.compose import ablation_names, compose
from ktbench.config.freeze import Request, freeze

__all__ = ["Request", "ablation_names", "compose", "freeze"]
