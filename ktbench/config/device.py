"""The device of cells that leave `engine.device` open: the GPU where their machine is described and has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktbench.config.axes import mapped_axes

_DEVICE = "engine.device"
# With a GPU the roles are apart anyway: what an ablation says of cores for each is for machines without one.
_WITH_GPU = {"device": "cuda", "roles": "shared", "device_threads": None}


def give_device(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a device at every machine, which is plain content of a MachineSpec or None, on axes too.

    A device that is set, or varied by an axis, stays.
    """
    engine, sweep = content["engine"], content["sweep"]
    if engine["device"] is not None:
        return dict(content)
    if not (isinstance(sweep["axes"], dict) and _DEVICE in sweep["axes"]):
        sweep = sweep | {"axes": mapped_axes(sweep["axes"], lambda changes: _with_device(changes, engine))}
    return {**content, "engine": engine | _given(content["machine"], engine), "sweep": sweep}


def _with_device(changes: dict[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    if "machine" not in changes:
        return changes
    given = _given(changes["machine"], engine)
    return {f"engine.{key}": value for key, value in given.items() if key == "device" or value != engine[key]} | changes


def _given(machine: Mapping[str, Any] | None, engine: Mapping[str, Any]) -> dict[str, Any]:
    has_gpu = machine is not None and machine["gpu"] is not None
    return _WITH_GPU if has_gpu else {"device": "cpu", **{key: engine[key] for key in ("roles", "device_threads")}}
