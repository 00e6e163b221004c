"""Whether timed steps are possible, given the roofs of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import median

from ktbench.host.roofs import Roofs
from ktbench.spec.record import Cell, RoofSample, Work

RoofPair = tuple[RoofSample, RoofSample]  # before and after the steps
# Roofs and steps are not measured at the same moment: a step may reach somewhat more.
_MOST_SHARE = 1.2
# Samples before a step counts as impossible; disturbances can only lower roofs.
_ROOF_TRIES, _CEILING_TRIES = 3, 10


@dataclass(kw_only=True)
class Plausibility:
    """Compares steps with roofs, which are sampled again if they seem to be exceeded."""

    roofs: Roofs
    _fastest: dict[tuple[str | None, str], RoofSample] = field(default_factory=dict)

    def undisturbed_roofs(
        self, cell: Cell, work: Work, samples_s: Sequence[float], roofs: RoofPair, *, first: bool
    ) -> RoofPair:
        """The roofs, sampled again if the steps are faster than they allow: something may have slowed the roofs alone.

        Only in the `first` trial of a cell that is faster than all roofs so far allow: its weights stay in a cache.
        """
        isa, dtype = cell.spec.engine.isa, cell.spec.dtype
        fastest = self._fastest.get((isa, dtype), roofs[0])
        in_cache = not first and _exceeds(work, samples_s, (fastest, fastest))
        for _ in range(0 if in_cache else _ROOF_TRIES):
            if not _exceeds(work, samples_s, roofs):
                break
            again = self.roofs.sample(isa, dtype)
            roofs = _faster(roofs[0], again), _faster(roofs[1], again)
        self._fastest[isa, dtype] = reduce(_faster, roofs, fastest)
        return roofs

    def why_impossible(self, work: Work, samples_s: Sequence[float], roofs: RoofPair) -> str:
        """Why no step can be this fast; empty if it can, be it because its weights stay in a cache."""
        if not _exceeds(work, samples_s, roofs):
            return ""
        taken_s, least_s = median(samples_s), 0.0
        for tried in range(_CEILING_TRIES):
            ceiling = self.roofs.ceiling(work.weight_bytes, again=tried > 0)
            least_s = work.least_s(ceiling.read_bytes_per_s, ceiling.peak_flops)
            if least_s <= _MOST_SHARE * taken_s:
                return ""
        return (
            f"a step of {1000 * taken_s:.3g} ms reads {work.weight_bytes:,} bytes of weights and does {work.flops:,} "
            f"operations, which takes {1000 * least_s:.3g} ms at least ({ceiling.read_bytes_per_s / 1e9:.3g} GB/s, "
            f"{ceiling.peak_flops / 1e12:.3g} TFLOPS)"
        )


def _exceeds(work: Work, samples_s: Sequence[float], roofs: RoofPair) -> bool:
    """Whether the median step is faster than the higher of the two samples of each roof allows."""
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops is not None]
    least_s = work.least_s(max(roof.read_bytes_per_s for roof in roofs), max(peaks, default=None))
    return least_s > _MOST_SHARE * median(samples_s)


def _faster(left: RoofSample, right: RoofSample) -> RoofSample:
    """The higher of two samples of each roof."""
    peaks = [roof.peak_flops for roof in (left, right) if roof.peak_flops is not None]
    read = max(left.read_bytes_per_s, right.read_bytes_per_s)
    return replace(left, read_bytes_per_s=read, peak_flops=max(peaks, default=None))
