"""Many submissions leave nothing behind."""

import resource
from pathlib import Path

from ktbench import _kernels
from tests.kernels.layers import case, garbage, submit


def resident_bytes() -> int:
    """Now, not at the peak, which earlier tests have raised."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_fifty_thousand_submits_leave_nothing_behind(cpus):
    of = case("int8", (4, 64, 64), 2, 2)
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool(cpus[:1], 100, own=True))
    outs = [garbage(of.batch) for _ in range(10)]

    def soak(submits: int) -> None:
        for _ in range(submits // len(outs)):
            for ticket in [submit(moe, of.batch, out, isa="reference") for out in outs]:
                ticket.wait()

    soak(2_000)
    before = resident_bytes()
    soak(50_000)
    assert resident_bytes() - before < 50_000 * 100, "bytes: not even a hundred for each"
    assert moe.counters()["flops"] == 52_000 * 4 * 6 * 64 * 64
