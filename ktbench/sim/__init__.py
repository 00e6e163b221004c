"""The simulator as other rooms see it: all that they may import of it, each name loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktbench.sim.advising.advice import *  # noqa: F403
    from ktbench.sim.advising.catalogue import *  # noqa: F403
    from ktbench.sim.advising.prices import *  # noqa: F403
    from ktbench.sim.errors import *  # noqa: F403
    from ktbench.sim.judging.measured import *  # noqa: F403
    from ktbench.sim.judging.users import *  # noqa: F403
    from ktbench.sim.judging.validation import *  # noqa: F403
    from ktbench.sim.limits import *  # noqa: F403
    from ktbench.sim.records import *  # noqa: F403
    from ktbench.sim.simulation import *  # noqa: F403

# By module what it gives to other rooms.
SEAM = {
    "records": ("simulate_cells",),
    "simulation": ("simulate",),
    "limits": ("as_judged", "not_simulated", "rules_not_simulated"),
    "errors": ("comparison_error", "shipped_errors", "speed_interval", "speed_text"),
    "advising.catalogue": ("Box", "read_box"),
    "advising.advice": ("Option", "Question", "Unfit", "Upgrade", "advised", "again", "option", "options", "upgrades"),
    "advising.prices": (
        "Offer",
        "PriceEntry",
        "PriceList",
        "cheapest",
        "closest",
        "entry_cells",
        "offer",
        "read_prices",
    ),
    "judging.measured": ("MeasuredCell", "measured_cells"),
    "judging.users": ("judge_users",),
    "judging.validation": ("FIGURES", "Judgement", "judge_publications", "judge_runs"),
}
_MODULES = {name: module for module, names in SEAM.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A name of the seam; `catalogue` and `fitting` are not loaded where cells are simulated."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
