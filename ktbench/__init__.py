"""ktbench: what each hybrid CPU/GPU optimisation of Mixture-of-Experts inference buys, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ktbench.spec.inject import InjectSpec

__version__ = "0.1.0"


def inject(network: PreTrainedModel, rules: InjectSpec | str | Path | None = None, **settings: Any) -> PreTrainedModel:
    """Puts packed, frozen, differentiable experts into a loaded Transformers model, for PEFT and its trainers.

    `rules` are injection rules, or a YAML file of them, whose operator is `experts`; by default all routed experts are
    replaced. `settings` are those of `ktbench.engine.training.inject.inject_experts`. Raises ValueError as it does.
    """
    from ktbench.config.inject import read_rules
    from ktbench.engine.training.inject import ROUTED_EXPERTS, inject_experts
    from ktbench.spec.inject import InjectSpec

    if rules is None:
        rules = ROUTED_EXPERTS
    return inject_experts(network, rules if isinstance(rules, InjectSpec) else read_rules(rules), **settings)
