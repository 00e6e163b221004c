"""What of a test's cases runs by default: how many examples a property test draws, which values a parameter takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

_FEW = 20  # what the default profile of tests/conftest.py draws
# tests/conftest.py says whether cases of `nox -s thorough` are wanted: making tests that will not run takes seconds.
collects_thorough = True


def examples(few: int) -> settings:
    """Draw so many by default, and in `nox -s fuzz` as many more as its profile has more: for a test of many cases."""
    return settings(max_examples=max(few, settings.default.max_examples * few // _FEW))


def few_of(values: Iterable[Any], few: Collection[Any]) -> list[ParameterSet]:
    """All values of a parameter, of which `few` run by default and the others in `nox -s thorough`."""
    values = list(values)
    assert few and all(value in values for value in few), "a case that is misspelt would run nowhere by default"
    return _few([pytest.param(value) for value in values], [value in few for value in values])


def _each_value(*values: object) -> Iterable[Hashable]:
    return enumerate(map(str, values))


def covering(
    cases: Iterable[Collection[Any]], met: Callable[..., Iterable[Hashable]] = _each_value
) -> list[ParameterSet]:
    """Cases of several parameters, of which a few run by default and the others in `nox -s thorough`.

    Together the few meet whatever any case meets: each value of each parameter, or what `met` says of the values of a
    case, such as pairs that act on each other. Values take turns. A case is what `itertools.product` makes of values
    and of cases. Those that are skipped meet nothing, and say so by default.
    """
    given = [case if isinstance(case, ParameterSet) else _beside(case) for case in cases]
    meets = [frozenset[Hashable]() if _is_skipped(case) else frozenset(met(*case.values)) for case in given]
    missing, taken = set[Hashable]().union(*meets), Counter[Hashable]()
    chosen = {at for at, case in enumerate(given) if _is_skipped(case)}
    while missing:
        rarely = [-sum(taken[at, str(value)] for at, value in enumerate(case.values)) for case in given]
        best = max(range(len(given)), key=lambda at: (len(meets[at] & missing), rarely[at]))
        chosen.add(best)
        missing -= meets[best]
        taken.update((at, str(value)) for at, value in enumerate(given[best].values))
    return _few(given, [at in chosen for at in range(len(given))])


def _is_skipped(case: ParameterSet) -> bool:
    marks = [(mark.name, *mark.args[:1]) for mark in case.marks]
    return ("skip",) in marks or ("skipif", True) in marks


def _beside(parts: Collection[Any]) -> ParameterSet:
    """Values and cases of a product as one case."""
    sets = [part if isinstance(part, ParameterSet) else pytest.param(part) for part in parts]
    values, marks = (list(chain.from_iterable(one)) for one in zip(*((s.values, s.marks) for s in sets), strict=True))
    names = [str(each.id or "-".join(map(str, each.values))) for each in sets]
    return pytest.param(*values, marks=marks, id="-".join(names) if any(each.id for each in sets) else None)


def _few(cases: Iterable[ParameterSet], by_default: Iterable[bool]) -> list[ParameterSet]:
    thorough = pytest.mark.thorough
    return [
        case if always else case._replace(marks=(*case.marks, thorough))
        for case, always in zip(cases, by_default, strict=True)
        if always or collects_thorough
    ]
