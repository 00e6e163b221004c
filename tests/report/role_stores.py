"""Runs of engines whose roles are apart, never measured: deferral, placement, depth."""

from __future__ import annotations

from ktbench.spec.engine import PlacementSpec
from tests.report.synthetic import Arm, Store

SPLIT = {"roles": "split"}
LADDER = (
    Arm(label="+v+d+l", step_ms=20.0, roles=(0.62, 0.48)),
    *(
        Arm(
            label=f"+v+d+l deferral={n}",
            step_ms=20.0 - 1.2 * min(n, 4),
            roles=(0.62 + 0.09 * min(n, 4), 0.48 - 0.1 * min(n, 4)),
        )
        for n in range(1, 9)
    ),
    Arm(
        label="+v+d+l deferral=auto",
        step_ms=15.4,
        roles=(0.97, 0.1),
        notes=("deferral=auto chose 4: the host role was busy 97 % of the step, with 3 it was 89 %",),
    ),
)
DEFERRAL = Store(arms=LADDER, engine=SPLIT, figure="roles", title="Deferral", run="deferral", rounds=6)
POLICIES = ("uniform", "front_loading", "random", "dynamic")
PLACEMENT = Store(
    arms=(Arm(label="+v+d+l", step_ms=20.0, roles=(0.6, 0.4)),),
    engine=SPLIT,
    placements=(
        PlacementSpec(),
        *(PlacementSpec(policy=policy, ratio=ratio) for policy in POLICIES for ratio in (0.125, 0.25, 0.5)),  # type: ignore[arg-type]
    ),
    figure="depth",
    title="Placement",
    run="placement",
    rounds=6,
)
DEPTH = Store(
    arms=(Arm(label="+v+d", step_ms=30.0), Arm(label="+v+d+l", step_ms=20.0, noise=0.05)),
    prompts=(64, 512, 2048, 8192),
    figure="depth",
    title="Depth",
    run="depth",
    rounds=6,
)
