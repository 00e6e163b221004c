"""The software constants of a system: how close its kernels come to a machine's limits, and what its calls cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from typing import Any, Literal

import yaml

from ktbench.resources import data_folder, shipped
from ktbench.spec.errors import instead
from ktbench.spec.wire import from_plain

# fact: read in a paper, a slide or code; microbenchmark: fitted on one; prior: a usual value, not fitted; fitted: on
# whole steps of one model (`python -m ktbench validate` fits them again).
Origin = Literal["fact", "microbenchmark", "prior", "fitted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostConstant:
    """One constant; `low` and `high` bound what a fit may make of it."""

    value: float
    unit: str
    origin: Origin
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Constants of a system by name; `calibration[name]` is a value in the constant's unit."""

    name: str
    title: str
    constants: dict[str, CostConstant]

    def __post_init__(self) -> None:
        for name, constant in self.constants.items():
            if not (isfinite(constant.value) and constant.value >= 0):
                raise ValueError(f"calibration {self.name}: {name}={constant.value}: must be at least 0")
            if not constant.source.strip():
                raise ValueError(f"calibration {self.name}: {name} has no source")

    def __getitem__(self, name: str) -> float:
        try:
            return self.constants[name].value
        except KeyError:
            raise ValueError(f"calibration {self.name}: {name} is missing") from None

    def changed(self, values: Mapping[str, float]) -> Calibration:
        """The same with other values. Raises ValueError naming one that is missing."""
        for name in values:
            self[name]
        changed = {name: replace(self.constants[name], value=value) for name, value in values.items()}
        return replace(self, constants=self.constants | changed)


def calibration_names() -> tuple[str, ...]:
    """Those that come with ktbench."""
    return tuple(sorted(path.stem for path in (data_folder("conf") / "calibration").glob("*.yaml")))


@cache
def read_calibration(name: str) -> Calibration:
    """A calibration of `conf/calibration`, with the constants of the one that it is `based_on` where it has none.

    Raises ValueError naming the allowed ones, and what is wrong in a file.
    """
    content = _content(name)
    based_on = content.pop("based_on", None)
    own = from_plain(content, Calibration)
    return own if based_on is None else rebased(own, read_calibration(based_on))


def base_of(name: str) -> str | None:
    """The calibration that one of `conf/calibration` is based on; None where it stands alone."""
    found = _content(name).get("based_on")
    return None if found is None else str(found)


def rebased(calibration: Calibration, base: Calibration) -> Calibration:
    """The calibration with its own constants (those in its file), and all others as in `base`."""
    own = {name: calibration.constants[name] for name in _content(calibration.name)["constants"]}
    return replace(calibration, constants=base.constants | own)


def calibration_yaml(calibration: Calibration) -> str:
    """The calibration as its file in `conf/calibration` keeps it, with the values of now: its own constants alone."""
    content = _content(calibration.name)
    constants = {
        name: constant | {"value": float(f"{calibration[name]:.4g}")} for name, constant in content["constants"].items()
    }
    content |= {"constants": constants}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def _content(name: str) -> dict[str, Any]:
    if name not in calibration_names():
        raise ValueError(f"machine.calibration={name}: unknown{instead(name, calibration_names())}")
    return dict(shipped(f"calibration/{name}"))
