"""Whether what a slow check covers has changed since the check last passed: `python .ci/changed.py CHECK`.

Exits with 0 where it has, else with 1. `--passed CHECK` notes that the check has passed on the files as they are: its
nox session does so, and the note, a digest in `.ci/passed/CHECK`, is committed with the change.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What each check covers beyond what the tests cover: files and folders.
COVERED = {
    "peers": ("ktbench/peers", "ktbench/spec/peers.py", "ktbench/engine/protocol.py", "tests/peers"),
    "fuzz": (
        "ktbench/config",
        "ktbench/engine/gguf",
        "ktbench/engine/stored",
        "ktbench/results/lines.py",
        "tests/fuzz",
    ),
}


def digest(check: str) -> str:
    """Of the names and contents of the files that git tracks there, as they are in the working tree."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *COVERED[check]]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    state = hashlib.sha256()
    for name in sorted(filter(None, names)):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        state.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return state.hexdigest()


def has_changed(check: str) -> bool:
    """Whether the check has not passed on these files."""
    note = ROOT / ".ci" / "passed" / check
    return not note.is_file() or note.read_text().strip() != digest(check)


def note_passed(check: str) -> None:
    """Remember that it has."""
    note = ROOT / ".ci" / "passed" / check
    note.parent.mkdir(exist_ok=True)
    note.write_text(f"{digest(check)}\n")


def main(words: list[str]) -> int:
    """Answer for a check, or note that it passed."""
    *option, check = words or [""]
    if check not in COVERED or option not in ([], ["--passed"]):
        print(f"usage: python .ci/changed.py [--passed] {'|'.join(COVERED)}", file=sys.stderr)
        return 2
    if option:
        note_passed(check)
        return 0
    return 0 if has_changed(check) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
