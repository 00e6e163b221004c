"""Scores by level of a run of the nano suite: `python -m examples.nano.levels RUN`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from ktbench.eval.tasks.nano_questions import LEVELS
from ktbench.results.run import Run, read_run
from ktbench.spec.record import SCORE

Counts = Mapping[int, tuple[int, int]]  # right and asked, by level


def counts_by_level(run: Run, label: str) -> dict[str, Counts]:
    """Of the first cell of an arm, for each task. Raises ValueError where no cell has that label."""
    cell = next((one for one in run.header.cells if one.label == label), None)
    if cell is None:
        labels = ", ".join(dict.fromkeys(one.label for one in run.header.cells))
        raise ValueError(f"arm={label}: the run has none such; allowed are {labels}")
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for (key, task), answers in run.answers().items():
        for one in answers if key == cell.key else ():
            if one.metric == SCORE and one.value is not None:
                level = int(one.question.partition("/")[0])
                right, asked = found.setdefault(task, {}).get(level, (0, 0))
                found[task][level] = (right + int(one.value), asked + 1)
    return {task: found[task] for task in sorted(found)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano.levels", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--arm", help="label of a cell (default: the first)")
    options = parser.parse_args()
    run = read_run(options.run)
    print("| task |", " | ".join(f"level {level}" for level in LEVELS), "| all |")
    print("|---|", "|".join("--:" for _ in range(len(LEVELS) + 1)), "|", sep="")
    for task, counts in counts_by_level(run, options.arm or run.header.cells[0].label).items():
        texts = [_share(*counts[level]) if level in counts else "—" for level in LEVELS]
        print("|", task, "|", " | ".join(texts), "|", _share(*map(sum, zip(*counts.values(), strict=True))), "|")


def _share(right: int, asked: int) -> str:
    return f"{100 * right / asked:.0f} % of {asked}"


if __name__ == "__main__":
    main()
