"""Where a hypervisor has placed the cores of a trial, by the time that a cache line takes between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ktbench.spec.record import Record

CoreLayout = Literal["same core", "near", "far", "moved"]
CORE_LAYOUTS: tuple[CoreLayout, ...] = get_args(CoreLayout)

# One way, in ns, measured on virtual machines: about 10 between two hyperthreads of a core, which share its L1 (Granite
# Rapids); 28 between cores of one Zen 4 complex and 65 on Granite Rapids' mesh, behind one last-level cache each; 155
# between two complexes of Zen 4. The limits lie in the gaps.
_NEAR_FROM_NS = 20.0
_FAR_FROM_NS = 90.0
# Cores of two sockets are within some hundreds: beyond this one of them was running something else.
_NO_DISTANCE_FROM_NS = 1000.0
_TOLD_BY_TWO = 2


def core_layout_at(ping_pong_ns: float | None) -> CoreLayout | None:
    """Where two cores lie between which a cache line takes `ping_pong_ns` one way; None without a measurement.

    "same core" below 20 ns, "near" (one last-level cache) below 90 ns, "far" from there on; 1 µs is no distance.
    """
    if ping_pong_ns is None or ping_pong_ns >= _NO_DISTANCE_FROM_NS:
        return None
    if ping_pong_ns < _NEAR_FROM_NS:
        return "same core"
    return "near" if ping_pong_ns < _FAR_FROM_NS else "far"


def core_layout_during(ping_pongs_ns: Sequence[float | None]) -> CoreLayout | None:
    """Where the cores were while these were measured: "moved" where they disagree.

    None where there is none, or one without a measurement.
    """
    seen = {core_layout_at(time) for time in ping_pongs_ns}
    if not seen or None in seen:
        return None
    return seen.pop() if len(seen) == 1 else "moved"


def core_layout_of(record: Record) -> CoreLayout | None:
    """Where the cores were during the trial of a record; see `core_layout_during`.

    None on more than two cores, of which the distance between two says nothing about the others.
    """
    if record.system_metrics is not None and record.system_metrics.disturbance.cpus > _TOLD_BY_TWO:
        return None
    return core_layout_during([roof.ping_pong_ns for roof in record.roofs])
