"""Shards that a scheduler starts by itself: `sweep shard=I/N` measures one, `merge` joins them into the run."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ktbench.config import Request
from ktbench.host.environment import environment
from ktbench.results import Log, NoPlan, Run, read_run
from ktbench.results.find import RUNS, find_run
from ktbench.run.cluster.shard_job import carry_out_shard
from ktbench.run.cluster.shards import (
    NODES,
    cut,
    damage_of,
    gather,
    is_running,
    is_wanted,
    nodes_of,
    say_damage,
    shard_of,
    write_shard,
)
from ktbench.run.open_run import open_run, require_same_cells
from ktbench.run.progress import say, trial_progress
from ktbench.run.request import cells_of
from ktbench.spec.cells import points_of
from ktbench.spec.errors import RequestError

_SHARD = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")
_OPENED_S, _POLL_S = 30.0, 0.2  # time for another node to write the plan


def measure_shard(request: Request, shard: str, command: list[str]) -> Path:
    """Measure and simulate the cells of `shard`, I/N, into a folder of the run that all shards name.

    Continues where its log ends. Raises RequestError for a shard that does not exist, and as `carry_out_shard`.
    """
    index, count = _numbers(shard)
    if request.run_name is None or request.resume is not None:
        raise RequestError(f"shard={shard}: name the run of all shards with run_name=NAME; the same command goes on")
    cells = cells_of(request)
    if count > (points := len(points_of(cells))):
        raise RequestError(f"shard={shard}: the sweep has {points} points, which stay whole; cut it into as many")
    mine, folder = cut(cells, count)[index - 1], _open_folder(request, command)
    place = folder / NODES / f"{index:03}-of-{count:03}"
    if others := [node for node in nodes_of(folder) if not node.name.endswith(f"-of-{count:03}")]:
        raise RequestError(f"shard={shard}: {others[0]} is of another cut; name another run")
    if not is_wanted(place):
        minutes = request.measure.max_minutes * len(mine) / len(cells)
        measure = replace(request.measure, max_minutes=minutes)
        write_shard(shard_of(read_run(folder), mine, measure, mixed=request.resume_changed), place)
    carry_out_shard(place)
    return place


def _numbers(shard: str) -> tuple[int, int]:
    match = _SHARD.fullmatch(shard)
    index, count = map(int, match.groups()) if match else (1, 0)
    if index > count:
        raise RequestError(f"shard={shard}: write I/N, the I-th of N shards, such as 1/4")
    return index, count


def _open_folder(request: Request, command: list[str]) -> Path:
    """The folder of the run with its plan, which the first shard writes."""
    cells, folder = cells_of(request), RUNS / str(request.run_name)
    if not folder.exists():
        with suppress(RequestError):  # another shard was faster
            open_run(request, cells, environment(), command, here=False)[0].close()
    until = time.monotonic() + _OPENED_S
    while True:
        try:
            require_same_cells(read_run(folder), cells)
            return folder
        except NoPlan:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_S)


def merge_shards(name: str) -> Run:
    """The run with the records of its shards. Raises RequestError without shards, or if one still runs."""
    log = Log(find_run(name))
    try:
        folder = log.path.parent
        nodes = nodes_of(folder)
        if not nodes:
            raise RequestError(f"merge {name}: has no shards, which `sweep shard=I/N run_name={name}` measures")
        if busy := next(filter(is_running, nodes), None):
            raise RequestError(f"merge {name}: {busy} is still being measured, merge again when it has ended")
        gather(log, nodes, trial_progress(read_run(folder).header.cells))
        say_damage(damage_of(nodes))
    finally:
        log.close()
    run = read_run(folder)
    recorded = {record.cell for record in run.records}
    if missing := [cell.label for cell in run.header.cells if cell.key not in recorded]:
        say(f"{len(missing)} of {len(run.header.cells)} cells have no record: not all shards have run")
    return run
