"""Train the nano model from scratch: `python -m examples.nano.train OUT`; an interrupted training goes on."""

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

from examples.nano.data import forced_accuracy, judged_questions
from examples.nano.model import new_model, save
from examples.nano.training import ALONE, Team, Training, teams
from ktbench.eval.tasks.nano_questions import TASKS, Question

STEPS = 1400
LOG_EVERY, JUDGE_EVERY = 50, 200
COLUMNS = ("step", "seconds", "cpu_seconds", "tokens", "loss", "rate", *(task.name for task in TASKS))
_SHARED = 6_500_000  # numbers: the parameters, the loads, the loss and the time


def train(out: Path, steps: int, seed: int, team: Team = ALONE) -> None:
    """Train for `steps`; the first of the team leaves checkpoint and log in `out`, now and then on the way.

    Each process keeps its state in `out` as often, goes on from it, and removes it in the end.
    """
    torch.set_num_threads(1)
    work = Training(new_model(seed), steps=steps, seed=seed, team=team)
    out.mkdir(parents=True, exist_ok=True)
    kept = out / f"state-{team.rank}.pt"
    if kept.is_file():
        work.resume(torch.load(kept))
    if team.rank:
        while work.step < steps:
            work.advance()
            _keep(work, kept)
    else:
        with (out / "training.csv").open("a" if work.step else "w", newline="") as file:
            _lead(work, out, file, kept)
    kept.unlink(missing_ok=True)


def _keep(work: Training, path: Path) -> None:
    if work.step % JUDGE_EVERY == 0 and work.step < work.steps:
        part = path.with_suffix(".part")
        torch.save(work.state(), part)
        part.replace(path)


def _lead(work: Training, out: Path, file: TextIO, kept: Path) -> None:
    table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    if not work.step:
        table.writeheader()
    asked = judged_questions()
    begin = time.perf_counter() - work.took_s
    losses: list[float] = []
    while work.step < work.steps:
        rate = work.rate()
        losses.append(work.advance())
        work.took_s = time.perf_counter() - begin
        last = work.step == work.steps
        if work.step % LOG_EVERY and not last:
            continue
        row = {"step": work.step, "seconds": round(work.took_s, 1), "cpu_seconds": round(work.cpu_s, 1)}
        row |= {"tokens": work.tokens, "loss": round(sum(losses) / len(losses), 5), "rate": round(rate, 5)}
        if not work.step % JUDGE_EVERY or last:
            row |= judge(work.model, asked)
            save(work.model, out)
        table.writerow(row)
        file.flush()
        print(" ".join(f"{name}={value:g}" for name, value in row.items()), file=sys.stderr, flush=True)
        _keep(work, kept)
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
