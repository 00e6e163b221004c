"""The table of operators in the docs is the registry."""

from __future__ import annotations

from pathlib import Path

from ktbench.engine.inject.registry import OPERATORS

DOCS = Path(__file__).parents[3] / "docs" / "injection.md"


def test_the_docs_list_every_operator_as_the_registry_has_it() -> None:
    _, _, table = DOCS.read_text().partition("| operator |")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]
    assert [(name.strip("`"), summary, wraps == "yes") for name, summary, _, wraps in rows] == [
        (kind.name, kind.summary, kind.wraps) for kind in OPERATORS.values()
    ]
    assert not any(kind.arguments for kind in OPERATORS.values()), "the docs need a column for arguments"
