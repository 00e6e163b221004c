"""Fits the constants of calibrations: of KTransformers on published numbers, of our engine on measured cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ktbench.sim.calibration import Calibration, base_of, rebased
from ktbench.sim.judging.measured import MeasuredCell
from ktbench.sim.judging.published import PublishedCell, of, residual
from ktbench.sim.simulation import step_seconds
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

FITTED_MODEL = "deepseek_v3"
_WHOLE = ("fig10", "fig11", "fig12", "fig14")  # figures about whole steps
# Residuals beyond it count less: single cells of the published data are off by more.
_OUTLIER = 0.1
_MOST_EVALUATIONS = 15
# Selections are whole numbers, so that smaller steps of a constant see noise.
_STEP = 0.04


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Constants that are fitted together, on the observations that `selects` accepts.

    `usual` holds some of them near a value that is known from elsewhere, within a factor of e to the power of +- the
    second number: what one model alone cannot tell apart.
    """

    name: str
    constants: tuple[str, ...]
    selects: Callable[[PublishedCell], bool]
    usual: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def _is_placed(one: PublishedCell) -> bool:
    """Both ends of the table, and half of the experts at random and by frequency."""
    placed = one.spec.engine.placement
    at_end = placed.policy == "host" or placed.ratio == 1
    half = placed.ratio == 0.5 and placed.policy in ("random", "frequency")
    return one.figure == "placement" and (at_end or half)


def _streams_at_an_end(one: PublishedCell) -> bool:
    """Layerwise prefill of prompts that are not long, on the fewest GPUs and on the most: copies take most of it."""
    machine = one.spec.machine
    at_end = machine is not None and machine.gpus in (1, 8)
    return one.figure == "layerwise" and at_end and one.spec.workload.prompt <= 8_192


_KTRANSFORMERS: tuple[Stage, ...] = (
    Stage(name="AMX kernel", constants=("amx_stream_one", "amx_peak", "amx_overlap"), selects=of("fig3")),
    Stage(
        name="PyTorch's AMX kernel",
        constants=("base_stream", "base_expert_ms", "base_peak"),
        selects=of("fig3", base=True, amx=True),
    ),
    Stage(
        name="PyTorch's AVX-512 kernel",
        constants=("base_vector_peak",),
        selects=of("fig3", base=True, amx=False),
    ),
    Stage(
        name="few tokens, both sockets",
        constants=("vector_stream", "vector_peak", "vector_serial", "amx_stream"),
        selects=of("fig7", model=FITTED_MODEL, base=None),
    ),
    Stage(
        name="decode",
        constants=("decode_stream", "call_ms", "gpu_stream", "kernel_us", "launch_us", "apart_ms", "decode_static"),
        selects=of(*_WHOLE, phase="decode", model=FITTED_MODEL),
        usual={"gpu_stream": (0.75, 0.2), "call_ms": (0.06, 0.5), "kernel_us": (2.7, 0.5)},
    ),
    Stage(
        name="prefill",
        constants=(
            "skew_deepseek_v3", "skew_decay", "attention", "fresh_ms_per_mb", "apart", "prefill_stream",
            "prefill_call_ms", "int4_arithmetic", "gemm_consumer", "attention_consumer", "quantised_vector",
        ),
        selects=of(*_WHOLE, phase="prefill", model=FITTED_MODEL),
        usual={"attention": (0.42, 0.07), "fresh_ms_per_mb": (0.4, 0.07)},
    ),
    Stage(
        name="base in prefill",
        constants=("base_new_ms", "base_moved_ms_per_mb"),
        selects=of(*_WHOLE, phase="prefill", model=FITTED_MODEL, base=True),
    ),
)  # fmt: skip
_KT_SGLANG = (
    Stage(
        name="experts on GPUs",
        constants=("decode_stream", "kernel_us", "call_ms", "skew_qwen3_next"),
        selects=_is_placed,
    ),
    Stage(
        name="experts that stream to GPUs",
        constants=("link_stream", "stream_write_ms_per_mb"),
        selects=_streams_at_an_end,
    ),
)
_KT_LLAMAFILE = (
    Stage(name="llamafile's kernels, one request", constants=("decode_stream", "kernel_us"), selects=of("llamafile")),
)
# By the calibration whose constants they fit.
STAGES: Mapping[str, tuple[Stage, ...]] = {
    "ktransformers": _KTRANSFORMERS,
    "kt_sglang": _KT_SGLANG,
    "kt_llamafile": _KT_LLAMAFILE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A stage's result: the calibration with its constants, and the residuals (see `residual`) that are left."""

    stage: Stage
    calibration: Calibration
    observations: tuple[PublishedCell, ...]
    residuals: tuple[float, ...]

    @property
    def rms(self) -> float:
        """Root of the mean square of the residuals: about the relative error."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))


def fit(observations: Sequence[PublishedCell], start: Calibration) -> Iterator[Fitted]:
    """The stages of a calibration one after the other, each with what the ones before have found."""
    calibration = start
    for stage in STAGES[start.name]:
        seen = tuple(one for one in observations if stage.selects(one))
        fitted = _fit(stage, seen, calibration)
        calibration = fitted.calibration
        yield fitted


def fit_all(observations: Sequence[PublishedCell], start: Mapping[str, Calibration]) -> Iterator[Fitted]:
    """The stages of all calibrations; one that is based on another starts from what that has become."""
    found: dict[str, Calibration] = {}
    for name, calibration in start.items():
        base = found.get(base_of(name) or "")
        for one in fit(observations, calibration if base is None else rebased(calibration, base)):
            found[name] = one.calibration
            yield one


def fitted_ids(observations: Sequence[PublishedCell]) -> frozenset[str]:
    """The observations of any stage."""
    stages = [stage for group in STAGES.values() for stage in group]
    return frozenset(one.id for one in observations if any(stage.selects(one) for stage in stages))


def _fit(stage: Stage, seen: Sequence[PublishedCell], start: Calibration) -> Fitted:
    bounds = [limits(start, name) for name in stage.constants]
    low, high = (np.array(side) for side in zip(*bounds, strict=True))
    first = np.clip([start[name] for name in stage.constants], low + 1e-9, high - 1e-9)

    def residuals_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([*_residuals(seen, _changed(start, stage, values)), *_pulls(stage, values)])

    found = least_squares(
        residuals_of,
        first,
        bounds=(low, high),
        x_scale=np.maximum(np.abs(first), 1e-3),
        diff_step=_STEP,
        max_nfev=_MOST_EVALUATIONS,
        loss="soft_l1",
        f_scale=_OUTLIER,
    )
    calibration = _changed(start, stage, found.x)
    return Fitted(
        stage=stage,
        calibration=calibration,
        observations=tuple(seen),
        residuals=tuple(_residuals(seen, calibration)),
    )


def limits(calibration: Calibration, name: str) -> tuple[float, float]:
    """What a fit may make of a constant. Raises ValueError for one without bounds."""
    constant = calibration.constants[name]
    if constant.low is None or constant.high is None:
        raise ValueError(f"calibration {calibration.name}: {name} is fitted and needs low and high")
    return constant.low, constant.high


def _changed(calibration: Calibration, stage: Stage, values: NDArray[np.float64]) -> Calibration:
    return calibration.changed({name: float(value) for name, value in zip(stage.constants, values, strict=True)})


def _residuals(seen: Sequence[PublishedCell], calibration: Calibration) -> list[float]:
    return [residual(one, calibration) for one in seen]


def _pulls(stage: Stage, values: NDArray[np.float64]) -> list[float]:
    """How far constants are from their usual values, in units of a residual of 0.1."""
    found = dict(zip(stage.constants, values, strict=True))
    return [_OUTLIER * log(max(found[name], 1e-9) / usual) / width for name, (usual, width) in stage.usual.items()]


_MODEL = "qwen3_30b_a3b"
_ARMS = ("base", "+v+d", "+m+d", "+v+d+l")
_TOKENS_PER_EXPERT = (1, 8, 128, 1024)
# Of a residual for a constant e times its value before: a cell that is 2 % off weighs as much.
_PULL = 0.02


def is_fitted(spec: RunSpec) -> bool:
    """Whether a cell belongs to the fitting set, which is of one model, and of it few kinds of cells.

    layer: bf16, int8 and int4_g32 at 1, 8, 128 and 1,024 tokens per expert. decode: bf16 at depths 64 and 2,048, with
    nothing deferred. prefill from 512 tokens on: int4_g32 with +l, bf16 without.
    """
    if spec.model.name != _MODEL or spec.engine.label not in _ARMS or spec.workload.phase == "train":
        return False
    work = spec.workload
    if work.phase == "layer":
        return spec.precision in ("bf16", "int8", "int4_g32") and spec.tokens_per_expert in _TOKENS_PER_EXPERT
    if work.phase == "decode":
        return spec.precision == "bf16" and work.prompt in (64, 2048)
    return work.prompt >= 512 and spec.precision == ("int4_g32" if spec.engine.packed_dense else "bf16")


def fit_measured(measured: Sequence[MeasuredCell], cost: Calibration) -> Calibration:
    """The constants that come nearest to the cells of the fitting set among `measured`: least squares of log ratios.

    Those move whose origin is `fitted`, each within its bounds. The prior values pull a little, so that a constant that
    no cell tells apart stays where it was. Raises RequestError where no cell is of the fitting set.
    """
    cells = [one for one in measured if is_fitted(one.spec)]
    names = [name for name, constant in cost.constants.items() if constant.origin == "fitted"]
    low, high = (np.log(side) for side in zip(*(limits(cost, name) for name in names), strict=True))
    before = np.log([cost[name] for name in names])
    if not cells:
        raise RequestError("validate fit=true: the runs have no cell of the fitting set")

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        tried = cost.changed(dict(zip(names, np.exp(logs).tolist(), strict=True)))
        errors = [log(step_seconds(one.spec, tried) / one.step_s) for one in cells]
        return np.array([*errors, *_PULL * (logs - before)])

    found = least_squares(residuals, before, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER, diff_step=0.01)
    return cost.changed(dict(zip(names, np.exp(found.x).round(6).tolist(), strict=True)))
