"""Runs in which our engine and peers were compared, never measured."""

from __future__ import annotations

from dataclasses import replace

from ktbench.spec.record import Agreement
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.synthetic import Arm, Store

REFERENCE = Agreement(against="", top1=1.0, kl_nats=0.0, positions=8)
NEAR = Agreement(against="transformers grouped_mm", top1=0.96875, kl_nats=0.00213, positions=32)
FAR = Agreement(against="transformers grouped_mm", top1=0.875, kl_nats=0.0412, positions=32)
NO_BITS = "transformers runs bf16 alone"
QUANTISED = {"q8_0": NO_BITS, "int8": NO_BITS, "q4_0": NO_BITS}

PREFILLING = (
    Arm(label="transformers grouped_mm", step_ms=24.0, agreement=REFERENCE, lacking=QUANTISED, call_ms=800.0),
    Arm(label="transformers eager", step_ms=31.0, agreement=NEAR, lacking=QUANTISED, call_ms=1500.0),
    Arm(label="llama.cpp", step_ms=14.0, agreement=FAR, notes=("llama.cpp b5581, 2 threads of 1 to 2",)),
    Arm(label="+v+d", step_ms=12.5, agreement=NEAR, call_ms=150.0),
    Arm(label="+v+d+l", step_ms=10.4, agreement=NEAR, call_ms=100.0),
)
PEERS = tuple(replace(arm, call_ms=0.0) for arm in PREFILLING)
OURS = replace(NEAR, against="llama.cpp")
LLAMA = (replace(PEERS[2], agreement=REFERENCE), *(replace(arm, agreement=OURS) for arm in PEERS[3:]))
# Nobody has compared llama.cpp's logits.
UNPROVEN = tuple(replace(arm, agreement=None) if arm.label == "llama.cpp" else arm for arm in PEERS)

DECODE = Store(arms=LLAMA, precisions=("bf16", "q8_0", "q4_0"), rounds=6, title="Decode beside peers", run="peers")
PREFILL = Store(
    arms=PREFILLING,
    phase="prefill",
    prompts=tuple(2**n for n in range(5, 14)),
    precisions=("bf16", "int8", "q4_0"),
    figure="depth",
    rounds=6,
    steps=1,
    title="Prefill beside peers",
    run="peers",
)
KERNELS = LayerStore(
    parts=(
        LayerPart(
            title="One MoE layer beside peers",
            arms=(
                LayerArm(label="transformers eager", share=0.3, call_s=4e-3),
                LayerArm(label="transformers grouped_mm", share=0.5, call_s=1e-3),
                LayerArm(label="kt-kernel", share=0.8, call_s=1e-4),
                LayerArm(label="+v+d", share=0.9),
                LayerArm(label="kt-kernel int8", share=0.7, call_s=1e-4),
                LayerArm(label="+v+d int8", share=0.92),
                LayerArm(label="kt-kernel int4_g32", share=0.6, call_s=1e-4),
                LayerArm(label="+v+d int4_g32", share=0.82),
            ),
        ),
    ),
    rounds=6,
)
