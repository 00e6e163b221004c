"""The most memory that cells held, in all and by NUMA node and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ktbench.spec.conduct import READ_BUFFER_BYTES, PeakMemory
from ktbench.spec.record import Record

_GIB = 2**30
# Peaks that differ by less are one number, said once.
_ALIKE = 1.1
_NOT_READ = "nobody looked at memory during these turns"


def peak_memory(records: Sequence[Record]) -> PeakMemory | None:
    """The most of all rounds; None where no record has a peak."""
    return most([record.conduct.memory for record in records if record.conduct and record.conduct.memory])


def most(peaks: Sequence[PeakMemory]) -> PeakMemory | None:
    """The most that any of these held of each memory; None without any."""
    if not peaks:
        return None
    return PeakMemory(
        process_bytes=max(peak.process_bytes for peak in peaks),
        of_turn=all(peak.of_turn for peak in peaks),
        node_bytes=_most([peak.node_bytes for peak in peaks]),
        device_bytes=_most([peak.device_bytes for peak in peaks]),
    )


def unseen_reason(records: Sequence[Record]) -> str:
    """Why there is no peak; empty where there is one."""
    conducts = [record.conduct for record in records if record.samples_s]
    why = [_NOT_READ if conduct is None else conduct.missing.get("memory", "") for conduct in conducts]
    return "; ".join(dict.fromkeys(filter(None, why)))


def are_alike(peaks: Sequence[PeakMemory]) -> bool:
    """Whether one number says what all held beside the harness's own buffer, which is the same in all."""
    held = [max(0, peak.process_bytes - READ_BUFFER_BYTES) for peak in peaks]
    return max(held) <= _ALIKE * min(held)


def in_gib(nbytes: int) -> str:
    """`5.3`."""
    return f"{nbytes / _GIB:.1f}"


def parts_text(peak: PeakMemory) -> str:
    """`node 0 2.5 GiB, node 1 2.5 GiB, cuda:0 7.1 GiB`."""
    return ", ".join(f"{name} {in_gib(nbytes)} GiB" for name, nbytes in (peak.node_bytes | peak.device_bytes).items())


def _most(held: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in held:
        found |= {name: max(nbytes, found.get(name, 0)) for name, nbytes in one.items()}
    return found
