"""`plan`: what a sweep would do, before anything loads."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "the cells of a sweep, minutes and bytes; what was dropped and why"


def run(overrides: Sequence[str]) -> int:
    """Print the plan. Raises RequestError where it would not fit."""
    from ktbench.cli.request import plan_request, read_request
    from ktbench.plan import estimate_memory, worker_groups

    request = read_request(overrides)
    planned = plan_request(request)
    measure = request.spec.measure
    for cell in planned.cells:
        ending = f"dropped: {planned.lacking[cell.key]}" if cell.key in planned.lacking else cell.key
        print(f"{cell.label:<14} {cell.spec.summary} {ending}")
    for group in worker_groups(planned.runnable):
        need = estimate_memory(group)
        gib = {name: getattr(need, name) / 2**30 for name in ("original", "packed", "others", "workspace", "fixed")}
        print("worker: " + ", ".join(f"{name} {value:.2f} GiB" for name, value in gib.items()))
    print(f"memory: {planned.needed_bytes / 2**30:.1f} GiB (estimated)")
    print(
        f"rounds: {measure.min_rounds} to {measure.max_rounds} of {len(planned.runnable)} turns, "
        f"at most {measure.max_minutes:g} minutes of turns, loading apart"
    )
    return 0
