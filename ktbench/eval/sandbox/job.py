"""What passes from the parent to the child, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Program(TypedDict):
    """What to run: `sources` one after the other in one namespace, then `function` with each of `arguments`.

    `function` is '' for none, and a method where there is a class Solution. The program sees `name` as `__name__`.
    `may_exit` allows sys.exit as an end.
    """

    sources: Sequence[str]
    name: str
    function: str
    arguments: Sequence[Sequence[object]]
    may_exit: bool


class Restrictions(TypedDict):
    """What the child is held to: files below `readable` may be read, and it dies with `parent`."""

    parent: int
    cpu_s: int
    memory_bytes: int
    output_bytes: int
    readable: Sequence[str]


class Job(TypedDict):
    """`token` comes back from a program that has come to its end; `libraries` are folders that it may import from."""

    program: Program
    restrictions: Restrictions
    libraries: Sequence[str]
    token: str
