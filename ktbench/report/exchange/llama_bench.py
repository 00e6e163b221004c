"""Speeds as llama-bench prints them: model, size, parameters, backend, test, tokens/s ± standard deviation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from ktbench.report.markdown import grid
from ktbench.results import Run
from ktbench.results.formats import format_of
from ktbench.results.row import Row, experts_bytes
from ktbench.results.run import facts_of
from ktbench.results.settings import model_title
from ktbench.spec.step.work import linear_bytes

_HEADINGS = ("model", "size", "params", "backend", "threads", "arm", "test", "t/s", "provenance")
_NUMERIC = tuple(heading in ("size", "params", "threads", "test", "t/s") for heading in _HEADINGS)


def llama_bench(run: Run, rows: Sequence[Row]) -> str:
    """The table as Markdown, a line for each timed row of prefill or decode; empty where there is none.

    `test` is as there: `pp64`, a prompt of 64 tokens, or `tg8 @ d64`, 8 tokens from context depth 64 on; `x4` is a
    batch of four. Speeds are means over rounds with their standard deviation; unlike llama-bench's, rounds of a run
    take turns with those of other rows. `size` is that of the weights as they are multiplied, of what was built.
    """
    shown = [
        row for row in rows if row.role == "arm" and row.timed and row.spec.workload.phase in ("prefill", "decode")
    ]
    if not shown:
        return ""
    cores = facts_of(run).get("cores")
    lines = [tuple(_cells(row, cores)) for row in shown]
    return "\n".join([*grid([_HEADINGS, *lines], _NUMERIC), ""])


def _cells(row: Row, cores: int | None) -> Iterator[str]:
    spec, shape = row.spec, row.spec.model.shape
    machine = spec.machine
    threads = spec.engine.threads or (cores if machine is None else machine.domains * machine.cores)
    title = model_title(spec.model.name)
    depth = f", {spec.model.depth}" if spec.model.is_slice else ""
    yield f"{title}{depth} {format_of(row)}"
    yield f"{_nbytes(row) / 2**30:.2f} GiB"
    yield f"{(shape.routed_params + shape.other_params) / 1e9:.2f} B"
    yield "CUDA" if spec.engine.device == "cuda" else "CPU"
    yield str(threads or "-")
    yield row.shown
    yield _test(row)
    yield _speed(row)
    yield str(row.provenance) if machine is None else f"simulated: {machine.title}"


def _nbytes(row: Row) -> int:
    """Of all weights: routed experts in their format, the others packed with +l, else in bf16."""
    spec, shape = row.spec, row.spec.model.shape
    if not spec.engine.packed_dense:
        return experts_bytes(row) + 2 * shape.other_params
    table = 0 if shape.tied_head else shape.vocab * shape.hidden
    return experts_bytes(row) + linear_bytes(spec) + 2 * table


def _test(row: Row) -> str:
    work = row.spec.workload
    batch = f" x{work.batch}" if work.batch > 1 else ""
    return f"pp{work.prompt}{batch}" if work.phase == "prefill" else f"tg{work.steps} @ d{work.prompt}{batch}"


def _speed(row: Row) -> str:
    speeds = [row.spec.workload.tokens_per_step / step_s for step_s in row.round_s.values()]
    return f"{mean(speeds):.2f}" if len(speeds) == 1 else f"{mean(speeds):.2f} ± {stdev(speeds):.2f}"
