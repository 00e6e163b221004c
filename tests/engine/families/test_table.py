"""docs/families.md is what the families are."""

from __future__ import annotations

from tests.engine.families.left_out import ABSENT
from tests.engine.families.table import FILE, table
from tests.engine.families.zoo import FAMILIES, REFUSED


def test_the_committed_table_is_the_one_that_is_generated() -> None:
    assert FILE.read_text(encoding="utf-8") == table(), "write it anew: python -m tests.engine.families.table"


def test_every_family_has_its_line() -> None:
    words = table()
    for name in (*FAMILIES, *REFUSED):
        assert f"| `{name}` |" in words
    assert all(f"| `{name}` |" in words for name in ABSENT)
