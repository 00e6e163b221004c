"""What each role did during one step, span by span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Resource = Literal["host", "device", "link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Work `name` on a resource from `begin_s` to `end_s`, in seconds from the begin of the step.

    `layer` counts decoder layers from 0, None for what belongs to none. `kind` groups spans of one colour: experts,
    deferred, attention, shared, wait, other.
    """

    resource: Resource
    name: str
    kind: str
    begin_s: float
    end_s: float
    layer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The spans of one step that took `step_s` seconds, in order of their begin."""

    title: str
    spans: tuple[Span, ...]
    step_s: float
