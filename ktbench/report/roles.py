"""How much of the time the roles worked, alone and at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.results.intervals import Interval, summary
from ktbench.spec.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleShares:
    """Shares of the timed steps, as intervals over rounds, in which each role worked, and in which both did."""

    host_busy: Interval
    device_busy: Interval
    overlap: Interval


def role_shares(records: Sequence[Record]) -> RoleShares | None:
    """Each round with its own share; None where no record has the times of its roles."""
    found = [record.roles for record in records if record.roles and record.roles.total_s > 0]
    if not found:
        return None
    return RoleShares(
        host_busy=summary([roles.host_busy_s / roles.total_s for roles in found], records),
        device_busy=summary([roles.device_busy_s / roles.total_s for roles in found], records),
        overlap=summary([roles.overlap_s / roles.total_s for roles in found], records),
    )
