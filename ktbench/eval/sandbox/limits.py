"""What a generated program may use, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass


class Unprotected(RuntimeError):
    """The machine cannot keep a program from its files or its network, so none is run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one program may use.

    For each of its tests it has `seconds` of processor time, and may sleep for `sleep_s`: what it waits for a processor
    counts for nothing, so that a busy machine does not fail a right answer. `memory_bytes` are of address space.
    `output_bytes` bound what it prints and what it returns.
    """

    seconds: int = 6
    sleep_s: int = 12
    memory_bytes: int = 2**30
    output_bytes: int = 16 * 2**20
    threads: int = 32

    def __post_init__(self) -> None:
        for name in ("seconds", "sleep_s", "memory_bytes", "output_bytes", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name}={getattr(self, name)}: must be 1 or above")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a program ended. `why` says in plain words what kept it from finishing; it is '' where it `finished`.

    `values` are what its function returned, as JSON holds it, one for each call that came back.
    """

    finished: bool
    stdout: str
    values: tuple[object, ...] = ()
    why: str = ""


def in_bytes(count: int) -> str:
    """A number of bytes in words."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} bytes"
