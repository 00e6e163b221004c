"""Arms whose speed-up is shared out, with the factors that a test chooses."""

from __future__ import annotations

from ktbench.spec.record import Outcome
from tests.report.synthetic import Arm

# +v 2x, +d 1.25x, deferral 1.1x alone and 1.32x beside +v: 1.2 of them only together.
FACTORIAL = (
    Arm(label="base", step_ms=264.0),
    Arm(label="+v", step_ms=132.0),
    Arm(label="deferral=3", step_ms=240.0),
    Arm(label="+v+d", step_ms=105.6),
    Arm(label="+v deferral=3", step_ms=100.0),
    Arm(label="+v+d deferral=3", step_ms=80.0),
)
LACKING = Arm(label="+v+m", outcome=Outcome.UNSUPPORTED, why="+m: no AMX")
LEFT_OUT = (
    Arm(label="+v", step_ms=100.0),
    Arm(label="+v+d+l deferral=3", step_ms=50.0),
    Arm(label="+v+l deferral=3", step_ms=60.0),
    Arm(label="+v+d deferral=3", step_ms=75.0),
    Arm(label="+v+d+l", step_ms=55.0),
)
