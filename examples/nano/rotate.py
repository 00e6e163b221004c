"""The examples that ship for fine-tuning, a task that training never showed: `python -m examples.nano.rotate FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from string import ascii_lowercase

COUNT = 1200


def rows(count: int = COUNT) -> Iterator[dict[str, str]]:
    """`rotate quamv: ` → `amvqu`, without repetitions: the first two of five to seven letters go to the end."""
    random, seen = Random("rotate"), set[str]()
    while len(seen) < count:
        word = "".join(random.choices(ascii_lowercase, k=random.randint(5, 7)))
        if word not in seen:
            seen.add(word)
            yield {"prompt": f"rotate {word}: ", "completion": word[2:] + word[:2]}


def text() -> str:
    """The file: a row in each line."""
    return "".join(f"{json.dumps(row)}\n" for row in rows())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
