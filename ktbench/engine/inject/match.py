"""Rules matched to the modules of a network, and the table that shows the result.

Every rule that cannot take effect is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ktbench.engine.inject.registry import ELSEWHERE, OPERATORS, OperatorKind
from ktbench.spec.errors import instead
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.weights import Precision

if TYPE_CHECKING:
    from torch import nn

_HEADINGS = ("module", "", "class", "operator", "rule")
_KEPT = "kept"
# Name with a star for the layer, class, operator with its arguments, rule.
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
    replaced = {replacement.name: replacement for replacement in replacements}
    gone = tuple(f"{replacement.name}." for replacement in replacements if not replacement.operator.wraps)
    for name, module in network.named_modules():
        one = replaced.get(name)
        if name.startswith(gone) or (one is None and not _holds(module)):
            continue
        operator, rule = (_operator(one.rule), one.rule.name) if one else (_KEPT, "")
        yield name, (_with_stars(name), type(module).__name__, operator, rule)


def _operator(rule: InjectRule) -> str:
    """`linear precision=int8`."""
    return " ".join((rule.operator, *(f"{key}={value}" for key, value in rule.args.items())))


def _holds(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _with_stars(name: str) -> str:
    """The name with a star for its first number, which is that of the layer."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name, count=1)


def _layer(name: str) -> str:
    found = re.search(r"(?<=\.)\d+(?=\.|$)", name)
    return found[0] if found else ""


def _cells(row: _Row, numbers: list[str]) -> tuple[str, ...]:
    name, class_name, operator, rule = row
    layers = numbers[0] if len(numbers) == 1 else f"{{{_ranges([int(number) for number in numbers])}}}"
    return name.replace("*", layers), f"x{len(numbers)}" if len(numbers) > 1 else "", class_name, operator, rule


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2,5` of 0, 1, 2 and 5, which ascend."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """One module, by its dotted name and its class, the rule that matched it and the operator that takes its place."""

    name: str
    class_name: str
    rule: InjectRule
    operator: OperatorKind


def expert_precisions(network: nn.Module, inject: InjectSpec) -> dict[str, Precision]:
    """The formats that rules pack routed experts in, by the name of their module; not those left to the request.

    Raises ValueError as `match_rules`.
    """
    named = tuple(rule for rule in inject.rules if rule.operator == "experts" and rule.precision is not None)
    found = match_rules(network, replace(inject, rules=named)) if named else ()
    return {one.name: one.rule.precision for one in found if one.rule.precision is not None}


def require_operators(inject: InjectSpec) -> None:
    """Raises ValueError for a rule whose operator or arguments the registry does not have. Needs no network."""
    for rule in inject.rules:
        kind = OPERATORS.get(rule.operator)
        if kind is None:
            raise ValueError(
                f"{_label(rule)}: there is no operator {rule.operator!r}{instead(rule.operator, OPERATORS)}"
            )
        for key, value in rule.args.items():
            if key not in kind.arguments:
                allowed = instead(key, kind.arguments) if kind.arguments else "; it takes none"
                hint = f"; {ELSEWHERE[key]}" if key in ELSEWHERE else ""
                raise ValueError(f"{_label(rule)}: the operator {kind.name} has no argument {key!r}{allowed}{hint}")
            if value not in (values := kind.arguments[key]):
                raise ValueError(f"{_label(rule)}: args.{key}={value}: allowed are {', '.join(map(str, values))}")


def match_rules(network: nn.Module, inject: InjectSpec) -> tuple[Replacement, ...]:
    """What the rules replace, in the order of the network's modules; a module comes before those inside it.

    The network may be on `meta`. Raises ValueError in one line that names rule and module: an operator or argument that
    the registry does not have, two rules for one module or for one inside the other (unless the outer operator wraps),
    an operator that does not fit, and a rule that matches nothing and is not optional. What a network in bf16 keeps in
    float32 is matched by no rule whose kernels compute on bf16.
    """
    require_operators(inject)
    modules = {name: module for name, module in network.named_modules() if name}
    exact = _kept_exact(modules)
    found = tuple(
        replacement
        for replacement in _replacements(modules, inject.rules)
        if not (replacement.operator.in_bf16 and replacement.name in exact)
    )
    for rule in inject.rules:
        if not rule.optional and all(one.rule is not rule for one in found):
            raise ValueError(f"{_label(rule)}: no module matches {rule.wants}{_nearest(rule, modules)}")
    _refuse_nested(found)
    for one in found:
        if why := one.operator.fits(modules[one.name]):
            raise ValueError(f"{_label(one.rule)}: {one.operator.name} does not fit {_module(one)}, which {why}")
    return found


def _kept_exact(modules: Mapping[str, nn.Module]) -> frozenset[str]:
    """Names of modules with weights in float32, where others are in bf16."""
    types = {name: {str(held.dtype) for held in module.parameters(recurse=False)} for name, module in modules.items()}
    if not any("torch.bfloat16" in held for held in types.values()):
        return frozenset()
    return frozenset(name for name, held in types.items() if "torch.float32" in held)


def _replacements(modules: dict[str, nn.Module], rules: Sequence[InjectRule]) -> Iterator[Replacement]:
    for name, module in modules.items():
        class_name = type(module).__name__
        matching = [rule for rule in rules if rule.matches(name, class_name)]
        if len(matching) > 1:
            raise ValueError(f"inject rules {matching[0].name} and {matching[1].name} both match {name} ({class_name})")
        for rule in matching:
            yield Replacement(name=name, class_name=class_name, rule=rule, operator=OPERATORS[rule.operator])


def _refuse_nested(found: Iterable[Replacement]) -> None:
    replaced = {one.name: one for one in found}
    for inner in replaced.values():
        for outer in _around(inner.name, replaced):
            if not outer.operator.wraps:
                raise ValueError(
                    f"inject rules {outer.rule.name} and {inner.rule.name}: {_module(inner)} is inside "
                    f"{_module(outer)}, which {outer.operator.name} takes the place of as a whole"
                )


def _around(name: str, replaced: dict[str, Replacement]) -> Iterator[Replacement]:
    while name := name.rpartition(".")[0]:
        if name in replaced:
            yield replaced[name]


def _label(rule: InjectRule) -> str:
    return f"inject rule {rule.name}"


def _module(one: Replacement) -> str:
    return f"{one.name} ({one.class_name})"


def _nearest(rule: InjectRule, modules: dict[str, nn.Module]) -> str:
    """The module whose last word, and the class whose name, is nearest to what a pattern spells out."""
    last_words = {name.rpartition(".")[2]: name for name in reversed(modules)}
    classes = {type(module).__name__: type(module).__name__ for module in modules.values()}
    near = [
        f"{what} {options[close[0]]}"
        for what, pattern, options in (("module", rule.module, last_words), ("class", rule.class_name, classes))
        if pattern and (close := get_close_matches(_spell(pattern), list(options), n=1, cutoff=0.6))
    ]
    return f"; nearest: {', '.join(near)}" if near else ""


def _spell(pattern: str) -> str:
    """The last word of a pattern: `experts` of `model\\.layers\\..*\\.experts`."""
    words: list[str] = re.findall(r"\w+", pattern)
    return words[-1] if words else ""
