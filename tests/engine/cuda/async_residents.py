"""Cases of `tests.engine.cuda.async_engine` with packed experts that live with the device, and operators by rules."""

from __future__ import annotations

import os
import sys

from ktbench.spec.engine import PlacementSpec
from ktbench.spec.weights import Precision
from tests.engine.cuda import async_engine
from tests.engine.cuda.async_engine import DECODE, HALF, Case
from tests.engine.engines import FUSED, LEAN
from tests.engine.tiny import decode

# Fewer pairs than experts live with the device, and more of them.
FEW, MANY = (decode(batch=batch, steps=6, routing="zipf") for batch in (1, 5))
# Experts come in the second turn.
MOVING = PlacementSpec(policy="dynamic", ratio=0.5, every=FEW.steps + 1)
GRAPH = FUSED | {"cuda_graph": True}
PRECISIONS: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "fp8")
CASES = {
    f"{name}_{precision}": Case(workload, GRAPH | {"placement": placement}, FUSED, precision)
    for precision in PRECISIONS
    for name, workload, placement in (("few", FEW, HALF), ("many", MANY, HALF), ("moving", MANY, MOVING))
}
CASES |= {
    # The device does not unpack these: the host does, in the step.
    "moving_unpacked": Case(MANY, GRAPH | {"placement": MOVING}, FUSED, "q8_0"),
    # Norms and latent attention of the device.
    "rules": Case(DECODE, GRAPH, FUSED, inject=LEAN),
}

if __name__ == "__main__":
    async_engine.CASES.update(CASES)
    async_engine.main(sys.argv[1:])
    os._exit(0)  # the device's threads never end
