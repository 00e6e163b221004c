"""A described machine: constants that each carry unit, source and samples, kept as YAML that people can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ktbench.spec.core_layout import CoreLayout
from ktbench.spec.wire import from_plain, to_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One number of a machine, with all its `samples` in order of measuring.

    `source` says where it comes from: a measurement with its date, a data sheet, a paper. A `value` of None needs a
    `why`. `placements` says for each sample where the cores were; it is empty on a machine with one core. Raises
    ValueError for a number without a source, a gap without a reason, and placements that do not match the samples.
    """

    title: str
    unit: str
    value: float | None = None
    source: str = ""
    samples: tuple[float, ...] = ()
    placements: tuple[CoreLayout, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise ValueError(f"{self.title}: a value of None needs a why")
        if self.value is not None and not self.source:
            raise ValueError(f"{self.title}: value {self.value} {self.unit} needs a source")
        if self.placements and len(self.placements) != len(self.samples):
            raise ValueError(f"{self.title}: {len(self.placements)} placements for {len(self.samples)} samples")

    def samples_at(self, placement: CoreLayout | None) -> tuple[float, ...]:
        """The samples taken while the cores were there; None, on a machine with one core, for all."""
        pairs = zip(self.samples, self.placements or [None] * len(self.samples), strict=True)
        return tuple(sample for sample, placed in pairs if placed == placement)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDescription:
    """A machine by its constants.

    `placement` says where its first two cores were most often (None with one core): the placement at which the values
    of measured constants hold, as medians of the samples taken there.
    """

    name: str
    env_id: str
    created: str
    constants: dict[str, Constant]
    facts: dict[str, Any]
    placement: CoreLayout | None = None


def save_description(machine: MachineDescription, path: Path) -> None:
    """Write the description, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a flow style the innermost lists, which are the samples, go on lines of their own width.
    text = yaml.safe_dump(to_plain(machine), default_flow_style=None, sort_keys=False, allow_unicode=True, width=120)
    path.write_text(text)


def load_description(path: Path) -> MachineDescription:
    """Read a description. Raises ValueError naming the file and what is wrong in it."""
    try:
        return from_plain(yaml.safe_load(path.read_text()), MachineDescription)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: not a machine description: {' '.join(str(error).split())}") from None
