"""Train the nano model from scratch: `python -m examples.nano.train OUT`."""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import torch
from transformers import DeepseekV3ForCausalLM

from examples.nano.data import forced_accuracy
from examples.nano.model import new_model, save
from examples.nano.training import ALONE, Team, Training, teams
from ktbench.eval.tasks.nano import SEED, TASKS, Question, questions

STEPS = 3000
LOG_EVERY, JUDGE_EVERY, JUDGED = 50, 200, 20
COLUMNS = ("step", "seconds", "tokens", "loss", "rate", *(task.name for task in TASKS))
_SHARED = 6_500_000  # numbers: the parameters, the loads and the loss


def train(out: Path, steps: int, seed: int, team: Team = ALONE) -> None:
    """Train for `steps`; the first of the team leaves checkpoint and log in `out`, now and then on the way."""
    torch.set_num_threads(1)
    work = Training(new_model(seed), steps=steps, seed=seed, team=team)
    if team.rank:
        for _ in range(steps):
            work.advance()
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / "training.csv").open("w", newline="") as file:
        _lead(work, out, file)


def _lead(work: Training, out: Path, file: TextIO) -> None:
    table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    table.writeheader()
    asked = questions(JUDGED, SEED + 1)
    begin = time.perf_counter()
    losses: list[float] = []
    while work.step < work.steps:
        rate = work.rate()
        losses.append(work.advance())
        last = work.step == work.steps
        if work.step % LOG_EVERY and not last:
            continue
        row = {"step": work.step, "seconds": round(time.perf_counter() - begin, 1), "tokens": work.tokens}
        row |= {"loss": round(sum(losses) / len(losses), 5), "rate": round(rate, 5)}
        if not work.step % JUDGE_EVERY or last:
            row |= judge(work.model, asked)
            save(work.model, out)
        table.writerow(row)
        file.flush()
        print(" ".join(f"{name}={value:g}" for name, value in row.items()), file=sys.stderr, flush=True)
        losses.clear()


def judge(model: DeepseekV3ForCausalLM, asked: Sequence[Question]) -> dict[str, float]:
    """Share of the right answers of each task (0 to 1), each byte predicted after the right ones before it."""
    by_task: dict[str, list[Question]] = {}
    for question in asked:
        by_task.setdefault(question.task, []).append(question)
    found = {task: round(forced_accuracy(model, of_task), 4) for task, of_task in by_task.items()}
    for layer in model.model.layers:
        layer.mlp.experts.loads.zero_()  # the balance looks at training alone
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano.train", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for checkpoint and log")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default %(default)s)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    context = multiprocessing.get_context("spawn")
    first, second = teams(context, 2, _SHARED)
    context.Process(target=train, args=(options.out, options.steps, options.seed, second), daemon=True).start()
    train(options.out, options.steps, options.seed, first)


if __name__ == "__main__":
    main()
