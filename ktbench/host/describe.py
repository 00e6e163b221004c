"""A described machine: constants that each carry unit, source and samples, kept as YAML that people can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ktbench.core.plain import from_plain, to_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One number of a machine. `value` is the median where there are `samples`, in order of measuring.

    `source` says where it comes from: a measurement with its date, a data sheet, a paper. A `value` of None needs a
    `why`. Raises ValueError for a number without a source or a gap without a reason.
    """

    title: str
    unit: str
    value: float | None = None
    source: str = ""
    samples: tuple[float, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise ValueError(f"{self.title}: a value of None needs a why")
        if self.value is not None and not self.source:
            raise ValueError(f"{self.title}: value {self.value} {self.unit} needs a source")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDescription:
    """A machine by its constants. `placement` says whether its first two cores share a cache: near or far."""

    name: str
    env_id: str
    created: str
    constants: dict[str, Constant]
    facts: dict[str, Any]
    placement: str | None = None


def save_description(machine: MachineDescription, path: Path) -> None:
    """Write the description, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(to_plain(machine), sort_keys=False, allow_unicode=True, width=120))


def load_description(path: Path) -> MachineDescription:
    """Read a description. Raises ValueError naming the file and what is wrong in it."""
    try:
        return from_plain(yaml.safe_load(path.read_text()), MachineDescription)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: not a machine description: {' '.join(str(error).split())}") from None
