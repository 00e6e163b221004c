"""What a report calls the injection rules of a run."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from ktbench.resources import data_folder
from ktbench.spec.inject import InjectSpec
from ktbench.spec.plain import from_plain, to_plain


def rules_word(inject: InjectSpec) -> str:
    """`lean`; `lean (changed)` where a shipped file of that name holds other rules now."""
    shipped = _shipped(inject.name)
    return inject.name if shipped is None or shipped == to_plain(inject.rules) else f"{inject.name} (changed)"


@cache
def _shipped(name: str) -> Any:
    """Plain content of the rules of a shipped file; None where none has the name."""
    path = data_folder("conf") / "inject" / f"{name}.yaml"
    if not path.is_file():
        return None
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return to_plain(from_plain(content, InjectSpec).rules)
