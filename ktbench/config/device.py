"""The device of cells that leave `engine.device` open: the GPU where their machine is described and has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktbench.config.axes import mapped_axes

_DEVICE = "engine.device"


def give_device(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a device at every machine, which is plain content of a MachineSpec or None, on axes too.

    A device that is set, or varied by an axis, stays.
    """
    engine, sweep = content["engine"], content["sweep"]
    if engine["device"] is not None:
        return dict(content)
    if not (isinstance(sweep["axes"], dict) and _DEVICE in sweep["axes"]):
        sweep = sweep | {"axes": mapped_axes(sweep["axes"], _with_device)}
    return {**content, "engine": engine | {"device": _device_of(content["machine"])}, "sweep": sweep}


def _with_device(changes: dict[str, Any]) -> dict[str, Any]:
    return {_DEVICE: _device_of(changes["machine"])} | changes if "machine" in changes else changes


def _device_of(machine: Mapping[str, Any] | None) -> str:
    return "cpu" if machine is None or machine["gpu"] is None else "cuda"
