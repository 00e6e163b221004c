"""Features from outside: rows that packages and a file of the user add to the table."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location

from ktbench.spec.features.record import Feature
from ktbench.spec.features.table import BY_NAME, FEATURES, NETWORKS
from ktbench.spec.limits import Limit

# Entry points of this group name rows of other packages; a file of the user's own has them as these.
FEATURE_GROUP, FEATURE_NAMES, MOST_FILE_BYTES = "ktbench.features", ("FEATURE", "FEATURES"), 1 << 20
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Hooks see the routing of the host role, in memory of the host.
_OF_HOOKS = (
    Limit(lambda spec: spec.engine.device != "cpu", "a feature of your own runs on CPU cores, leave out engine.device"),
    Limit(
        lambda spec: spec.engine.placement.policy != "host",
        "a feature of your own sees the experts of the host alone, leave out engine.placement",
    ),
)


def register(feature: Feature) -> None:
    """Add a feature from outside to the table. Raises ValueError for a name that is taken or is none, and no hook."""
    if not _NAME.fullmatch(feature.name):
        raise ValueError(f"feature {feature.name!r}: a name has letters a to z, digits and '_'")
    if feature.name in BY_NAME and not BY_NAME[feature.name].is_own:
        raise ValueError(f"feature {feature.name}: is one of ktbench's own, change the name")
    if feature.hook is None or feature.letter or feature.best:
        raise ValueError(f"feature {feature.name}: has a hook, no letter and no best where it comes from outside")
    if taken := next((one for one in FEATURES if one.counter == feature.counter and one.name != feature.name), None):
        raise ValueError(f"feature {feature.name}: {feature.counter} is the counter of {taken.name}, change it")
    phases = tuple(phase for phase in feature.phases if phase in NETWORKS)
    limits = (*_OF_HOOKS, *_required(feature.requires), *feature.limits)
    BY_NAME[feature.name] = replace(feature, phases=phases, limits=limits)


def _required(names: tuple[str, ...]) -> tuple[Limit, ...]:
    """The limit of what needs one of these features. Raises ValueError for a name of none."""
    if unknown := next((name for name in names if name not in BY_NAME), None):
        raise ValueError(f"requires {unknown}: no such feature")
    needed = " or ".join(BY_NAME[name].word for name in names)
    lacks = Limit(lambda spec: not any(other.name in names for other, _ in spec.engine.on), f"needs {needed}")
    return (lacks,) if names else ()


def register_file(file: str) -> None:
    """Run a Python file and add the features that it names FEATURE or FEATURES. Raises ValueError in one line."""
    where = f"engine.own_file={file}"
    try:
        found = spec_from_file_location("ktbench_own_features", file)
        if found is None or found.loader is None:
            raise ImportError("is no Python file, FILE.py")
        module = module_from_spec(found)
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ValueError(f"{where}: {type(error).__name__}: {error}".splitlines()[0]) from None
    single, several = (getattr(module, name, ()) for name in FEATURE_NAMES)
    rows = [single] if isinstance(single, Feature) else [*several]
    if not rows or not all(isinstance(row, Feature) for row in rows):
        raise ValueError(f"{where}: names no {' and no '.join(FEATURE_NAMES)} of ktbench.spec.features")
    for row in rows:
        try:
            register(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def plug_in() -> None:
    """Add the rows that entry points name; cells that ask for one that cannot be read are told why."""
    for point in sorted(metadata.entry_points(group=FEATURE_GROUP), key=lambda point: point.name):
        try:
            row = point.load()
            if not isinstance(row, Feature) or row.name != point.name:
                raise TypeError(f"is no Feature that is called {point.name}")
            register(row)
        except (Exception, SystemExit) as error:  # code of others: whatever it does, all else remains
            why = f"{point.value}: {type(error).__name__}: {error}".splitlines()[0]
            if _NAME.fullmatch(point.name) and point.name not in BY_NAME:
                register(_unusable(point.name, why))


def _unusable(name: str, why: str) -> Feature:
    """A row whose cells cannot run."""
    limits = (Limit(lambda _: True, why),)
    return Feature(name=name, title=name, off="", counter=f"{name}_calls", limits=limits, hook=lambda value: value)
