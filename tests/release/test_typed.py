"""What a user's type checker sees of ktbench."""

from __future__ import annotations

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

# The second line is wrong: `name` is text. With a package that says nothing of its types, both would pass as `Any`.
SCRIPT = """import ktbench
wrong: int = ktbench.load("latest").name
"""


@pytest.mark.thorough
def test_a_mistake_in_a_script_that_uses_ktbench_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    found, said, code = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(script)])
    assert (code, said) == (1, "")
    assert f"{script.name}:2: error: Incompatible types in assignment" in found
    assert "ktbench" not in found.partition("\n")[2].partition("Found")[0]
