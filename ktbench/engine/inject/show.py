"""The table behind `inject.show`: every module that holds something, and what takes its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ktbench.engine.inject.match import Replacement

if TYPE_CHECKING:
    from torch import nn

_HEADINGS = ("module", "", "class", "operator", "rule")
_KEPT = "kept"
# Name with a star for the layer, class, operator, rule.
_Row = tuple[str, str, str, str]


def lines(network: nn.Module, replacements: Sequence[Replacement]) -> list[str]:
    """One aligned line for every module with weights or buffers of its own, replaced or kept, in the network's order.

    What is the same in several layers is one line with their numbers: `model.layers.{0-2,5}.mlp.gate  x4`. What is
    inside a replaced module that is not wrapped goes with it.
    """
    layers: dict[_Row, list[str]] = {}
    for name, row in _rows(network, replacements):
        layers.setdefault(row, []).append(_layer(name))
    cells = [_HEADINGS, *(_cells(row, numbers) for row, numbers in layers.items())]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS))]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _rows(network: nn.Module, replacements: Sequence[Replacement]) -> Iterator[tuple[str, _Row]]:
    replaced = {one.name: one for one in replacements}
    gone = tuple(f"{one.name}." for one in replacements if not one.operator.wraps)
    for name, module in network.named_modules():
        one = replaced.get(name)
        if name.startswith(gone) or (one is None and not _holds(module)):
            continue
        operator, rule = (one.operator.name, one.rule.name) if one else (_KEPT, "")
        yield name, (_starred(name), type(module).__name__, operator, rule)


def _holds(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _starred(name: str) -> str:
    """The name with a star for its first number, which is that of the layer."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name, count=1)


def _layer(name: str) -> str:
    found = re.search(r"(?<=\.)\d+(?=\.|$)", name)
    return found[0] if found else ""


def _cells(row: _Row, numbers: list[str]) -> tuple[str, ...]:
    name, class_name, operator, rule = row
    told = numbers[0] if len(numbers) == 1 else f"{{{_ranges([int(number) for number in numbers])}}}"
    return name.replace("*", told), f"x{len(numbers)}" if len(numbers) > 1 else "", class_name, operator, rule


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2,5` of 0, 1, 2 and 5, which ascend."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
