"""From the words of a command line to a frozen request and the cells it means, here or on a machine of paper."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ktbench.cli.described import lacking_there
from ktbench.cli.here import lacking_here, lacking_room
from ktbench.config import Request, compose, freeze
from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.gguf.inspecting import inspect_gguf, is_gguf
from ktbench.engine.inject.match import require_operators
from ktbench.host.describe import read_local_machine
from ktbench.host.memory import available_memory_bytes
from ktbench.host.topology import read_topology
from ktbench.resources import checkpoint_folder
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.memory import blocks_of, require_memory
from ktbench.spec.record import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Cells of a request. `lacking` says by cell key why a cell cannot be run, here or on its machine.

    `needed_bytes` are held at once at most, of `free_bytes`; `cache_bytes` is the last-level cache, 0 if not known.
    Simulated cells need none of it.
    """

    cells: tuple[Cell, ...]
    lacking: dict[str, str]
    needed_bytes: int
    free_bytes: int
    cache_bytes: int

    @property
    def here(self) -> tuple[Cell, ...]:
        """Cells to measure on this machine, whether it can run them or not."""
        return tuple(cell for cell in self.cells if cell.spec.machine is None)

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that this machine can run."""
        return tuple(cell for cell in self.here if cell.key not in self.lacking)

    @property
    def simulated(self) -> tuple[Cell, ...]:
        """Cells on machines of paper, whether those could run them or not."""
        return tuple(cell for cell in self.cells if cell.spec.machine is not None)

    @property
    def blocks(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells that can run, in the blocks that take turns together: all, or as many as memory has room for."""
        return blocks_of(self.runnable, self.free_bytes, self.cache_bytes)


def read_request(overrides: Sequence[str], *, asks: bool = False) -> Request:
    """The frozen request behind overrides. Raises RequestError, also for a suite where nobody `asks` its questions."""
    composed = compose(overrides, read_local_machine)
    try:
        request = freeze(composed, dict(_checkpoints(composed.parts.values())))
        for part in request.parts:
            require_operators(part.spec.inject)
    except ValueError as error:
        raise RequestError(str(error)) from None
    if request.suite is not None and not asks:
        raise RequestError(
            f"suite={request.suite.name}: questions are asked by `eval`: python -m ktbench eval {shlex.join(overrides)}"
        )
    return request


def _checkpoints(parts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configurations of the checkpoints that parts name. Weights have to be there where a cell is measured."""
    for content in parts:
        for path in {model["path"] for model in _models(content)} - {None}:
            yield path, inspect_checkpoint(path) if _is_measured(content) else _configuration(path)


def _models(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The model of a part, and those on its axes."""
    yield content["model"]
    axes = content["sweep"]["axes"]
    for values in axes.values() if isinstance(axes, dict) else ():
        changes = values if isinstance(values, list) else []
        yield from (one["model"] for one in changes if isinstance(one, Mapping) and "model" in one)


def _is_measured(content: Mapping[str, Any]) -> bool:
    """Whether cells of a part may be measured here."""
    return content["machine"]["name"] == "here" or "machine" in (content["sweep"]["axes"] or ())


def _configuration(path: str) -> dict[str, Any]:
    """What a checkpoint says of itself; its weights need not be there. Raises ValueError naming the file."""
    if is_gguf(path):
        return inspect_gguf(path)
    file = checkpoint_folder(path) / "config.json"
    if not file.is_file():
        raise ValueError(f"model.path={path}: no config.json there, not a Hugging Face folder")
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: holds no configuration ({error})") from None


def plan_request(request: Request) -> Planned:
    """Cells of a request, sorted into what can be run and what cannot, with the reason.

    Raises RequestError where what is to be measured does not fit this machine; beside simulated cells that is a reason
    like any other.
    """
    cells = cells_of(request)
    return plan_here(cells, refuses=all(cell.spec.machine is None for cell in cells))


def cells_of(request: Request) -> tuple[Cell, ...]:
    """Cells of a request. A simulated cell has no control: it is the same every time."""
    planned = (cell for part in request.parts for cell in plan_cells(part.spec, part.sweep, part.name))
    return tuple(cell for cell in planned if cell.role == "arm" or cell.spec.machine is None)


def plan_here(cells: tuple[Cell, ...], *, refuses: bool) -> Planned:
    """Cells sorted into what this machine can run and what it cannot, with the reason.

    Where it `refuses`, RequestError is raised for what does not fit this machine as a whole.
    """
    here = [cell for cell in cells if cell.spec.machine is None]
    lacking = lacking_there(cells) | lacking_here(here, cuda_is_needed=refuses)
    free, cache = available_memory_bytes(), read_topology().last_level_cache_bytes or 0
    if not refuses:
        lacking |= lacking_room([cell for cell in here if cell.key not in lacking], free, cache)
    needed = require_memory([cell for cell in here if cell.key not in lacking], free, cache)
    return Planned(cells=cells, lacking=lacking, needed_bytes=needed, free_bytes=free, cache_bytes=cache)
