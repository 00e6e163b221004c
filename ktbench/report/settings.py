"""What a cell was run at apart from its features: equal settings make a group, which has its own baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TypeAlias

from ktbench.core.features import BY_NAME
from ktbench.core.ids import digest
from ktbench.core.spec import RunSpec

Setting: TypeAlias = bool | int | float | str | None


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """Settings by dotted key. The model's configuration is one of them by its size, its depth and its digest."""
    model = spec.model
    found: dict[str, Setting] = {
        "model": model.name,
        "model.layers": model.shape.layers,
        "model.vocab": model.shape.vocab,
        "model.seed": model.seed,
        "model.path": model.path,
        "model.config": digest(model.config),
        "precision": spec.precision,
    }
    for f in fields(spec.workload):
        found[f"workload.{f.name}"] = getattr(spec.workload, f.name)
    for f in fields(spec.engine):
        if f.name not in BY_NAME:
            found[f"engine.{f.name}"] = getattr(spec.engine, f.name)
    return found


def varying(groups: Iterable[Mapping[str, Setting]]) -> tuple[str, ...]:
    """Keys whose value is not the same in every group, in the order of the first one.

    What follows from another varying key (the model's digest, its vocabulary, the path beside the name) is left out.
    """
    listed = list(groups)
    keys = [key for key in listed[0] if any(other[key] != listed[0][key] for other in listed)] if listed else []
    follows = ("model.config", "model.vocab", "model.path") if {"model", "model.layers"} & set(keys) else ()
    return tuple(key for key in keys if key not in follows)
