"""Counts the instructions of hot kernels and of timed steps, and compares them with the recorded ones.

    python -m tests.instructions [--only avx2,engine] [--write]

Exit code 1 where a call has grown by more than half a percent under the recorded compiler; `--write` records instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.instructions.counter import missing


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 where something has grown too much; 2 for a wrong request."""
    parser = argparse.ArgumentParser(prog="nox -s instructions --", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAMES", help="instruction sets, and engine, separated by commas")
    parser.add_argument("--write", action="store_true", help="record what is counted")
    parser.add_argument("--missing", action="store_true", help="only print why nothing can be counted here, if so")
    asked = parser.parse_args(words)
    reason = missing()
    if asked.missing or reason:
        print(reason)
        return 0
    # They need the extension.
    from tests.instructions.calls import groups
    from tests.instructions.session import carry_out

    chosen = asked.only.split(",") if asked.only else groups()
    if unknown := [group for group in chosen if group not in groups()]:
        parser.error(f"--only {','.join(unknown)}: allowed are {', '.join(groups())}")
    return 0 if carry_out(chosen, write=asked.write) else 1


if __name__ == "__main__":
    sys.exit(main())
