"""The table of quantities. CSV, JSON, frames, tables and tooltips are loops over it: a new column is a new row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

from ktbench.results.intervals import exact
from ktbench.results.quantities import writing
from ktbench.results.quantities.disturbances import rounds_disturbed
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.text import DASH, dashed, in_gib, pairs_text
from ktbench.results.quantities.trials import (
    Trial,
    first_tokens,
    gaps,
    kept,
    part_of_step,
    percentile_of,
    served,
    share_of_steps,
    whole_answers,
)
from ktbench.results.row import Row, comparable, experts_bytes, stored_bits
from ktbench.results.serving.latency import SHARES, mean_waiting
from ktbench.results.training.learning import losses_of
from ktbench.results.usage import Limit, most, unmetered_reason, unseen_reason
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Agreement
from ktbench.spec.serving.replay import expanded

_NO_WORK = "the system does not report its work per step"
_UNKNOWN_WORK = "the work of a token depends on which requests share a step"


def _no_work(row: Row) -> str:
    return _UNKNOWN_WORK if row.is_serving else _NO_WORK


def _no_roof(row: Row) -> str:
    sampled = any(record.roofs for record in row.records)
    return _no_work(row) if row.is_serving or sampled else "no roof was sampled next to the trials"


def _no_whole(row: Row) -> str:
    return "layers or output head of the slice are not in the whole model's proportion" if row.has_whole else ""


def _no_roles(row: Row) -> str:
    return "the system does not report the times of its roles" if row.spec.engine.roles_concurrent else ""


def _no_counters(row: Row) -> str:
    return "the simulation counts nothing" if row.simulated else "the system counts nothing"


def _unchecked(row: Row) -> str:
    """Why experts' outputs have no error."""
    if row.simulated:
        return "simulated: nothing was computed"
    if row.is_serving:
        return "whole answers were compared with those to single requests"
    if row.spec.system == OURS or not peer_of(row.spec.system).black_box:
        return "the output was not checked"
    instead = "logits were compared instead" if row.agreement else "logits were not compared"
    return f"the experts' outputs cannot be observed: {instead}"


def _measured(why: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: "a simulated step takes none" if row.simulated else why(row)


def last(values: Sequence[Any]) -> Any:
    """That of the last round which has any."""
    return values[-1]


def nearer(differences: Sequence[float]) -> Limit:
    """The roof that leaves a step less time, by how much longer the arithmetic must take than reading."""
    return "arithmetic" if median(differences) > 0 else "read"


def worst(found: Sequence[Agreement]) -> Agreement:
    """The least top-1 agreement and the largest divergence of all rounds, with the positions of the latest of them."""
    return Agreement(
        against=found[-1].against,
        top1=min(agreement.top1 for agreement in found),
        kl_nats=max(agreement.kl_nats for agreement in found),
        positions=found[-1].positions,
    )


def _serves(row: Row) -> bool:
    return row.is_serving


def _trains(row: Row) -> bool:
    return row.is_training


def _learns(row: Row) -> bool:
    return row.learning is not None


def _percentiles(
    name: str, what: str, unit: str, scale: float, seconds: Callable[[Trial], Sequence[float]]
) -> Iterator[Quantity]:
    """Percentiles over the requests of a trial; a table in a paper has room for the least and the largest."""
    for percent, share in SHARES.items():
        yield Quantity(
            name=f"{name}_{percent}_s",
            heading=f"{what} {percent} ({unit})",
            trial=percentile_of(share, seconds),
            has=_serves,
            scale=scale,
            digits=3,
            is_key=percent != "p90",
            json=f"serving.{name}_s.{percent}",
        )


STEP = Quantity(
    name="step_s",
    heading=writing.time_heading,
    trial=lambda trial: trial.step_s,
    write=writing.step_text,
    is_key=True,
    why=lambda row: row.ending,
)
_SPEEDS = (
    Quantity(
        name="experts_bytes",
        heading=writing.only_frontiers("experts (GiB)"),
        derive=experts_bytes,
        scale=2**-30,
        digits=3,
        is_key=True,
        csv=False,
        json=None,
    ),
    Quantity(
        name="stored_bits",
        heading=writing.only_frontiers("bits a weight"),
        derive=stored_bits,
        digits=3,
        is_key=True,
        csv=False,
        json=None,
    ),
    STEP,
    Quantity(
        name="tokens_per_s",
        heading=writing.speed_heading,
        derive=attrgetter("tokens_per_s"),
        is_interval=True,
        is_key=True,
    ),
    Quantity(
        name="of_layers",
        derive=lambda row: row.spec.model.full_layers if row.spec.model.is_slice else None,
        json=None,
    ),
    Quantity(
        name="whole_tokens_per_s",
        heading="whole model, extrapolated (tokens/s)",
        derive=attrgetter("whole_tokens_per_s"),
        is_interval=True,
        why=_no_whole,
    ),
)
_COMPARED = (
    Quantity(
        name="speedup",
        heading="speed-up (×)",
        derive=lambda row: exact(1.0) if row.is_baseline and row.timed else row.speedup,
        is_interval=True,
        write=writing.speedup_text,
        is_key=True,
        json=None,
    ),
    Quantity(
        name="verdict",
        heading="verdict",
        derive=lambda row: row.speedup and row.verdict,
        write=writing.verdict_text,
        is_text=True,
        is_key=True,
        json=None,
    ),
    Quantity(
        name="comparable_rounds",
        heading="comparable rounds",
        derive=comparable,
        is_movable=True,
        is_key=True,
        json=None,
    ),
    Quantity(
        name="gain",
        heading="gain of the last feature (×)",
        derive=lambda row: row.gain and row.gain.ratio,
        is_interval=True,
        write=writing.gain_text,
        is_text=True,
        blanks=(DASH, writing.AS_SPEEDUP),
        json=None,
    ),
    Quantity(name="gain_over", derive=lambda row: row.gain and row.gain.over, json=None),
    Quantity(name="gain_verdict", derive=lambda row: row.gain and row.gain.verdict, json=None),
)
_ROOFS = (
    Quantity(
        name="read_bytes_per_s",
        heading="weights read (GB/s)",
        derive=attrgetter("read_bytes_per_s"),
        scale=1e-9,
        digits=3,
        why=_no_work,
    ),
    Quantity(
        name="flops_per_s",
        heading=writing.rate_heading,
        derive=attrgetter("flops_per_s"),
        scale=1e-12,
        digits=3,
        why=_no_work,
    ),
    Quantity(
        name="arithmetic",
        heading=writing.mixed_heading,
        derive=attrgetter("flops_per_s"),
        write=writing.rate_text,
        csv=False,
        json=None,
    ),
    Quantity(
        name="roof_share",
        heading="of roof (%)",
        trial=lambda trial: trial.bound_s and trial.bound_s / trial.step_s,
        write=writing.roof_text,
        is_key=True,
        why=_no_roof,
        json="roof.share",
    ),
    Quantity(
        name="nearer_roof",
        heading="nearer roof",
        trial=lambda trial: trial.least_s and trial.least_s[1] - trial.least_s[0],
        reduce=nearer,
        write=writing.limit_text,
        is_movable=True,
        is_text=True,
        json="roof.limit",
    ),
    Quantity(
        name="peak_isa",
        trial=lambda trial: trial.least_s and trial.record.roofs[0].peak_isa,
        reduce=last,
        json="roof.peak_isa",
    ),
    Quantity(
        name="peak_dtype",
        trial=lambda trial: trial.least_s and trial.record.roofs[0].peak_dtype,
        reduce=last,
        json="roof.peak_dtype",
    ),
    Quantity(
        name="roofs_left_out",  # trials whose own roofs were not used because the machine changed during them
        trial=lambda trial: None if trial.bound_s is None else trial.least_s is None,
        reduce=sum,
        csv=False,
        json="roof.left_out",
    ),
    Quantity(
        name="roofs_steady",  # whether any trial has roofs that hold for it; where none does, all are used all the same
        trial=lambda trial: None if trial.bound_s is None else trial.is_steady,
        reduce=any,
        csv=False,
        json="roof.steady",
    ),
)
_SERVING = (
    Quantity(
        name="output_per_s",
        trial=served(lambda replay: replay.output_tokens / replay.seconds),
        has=_serves,
        json="serving.output_per_s",
    ),
    Quantity(
        name="total_per_s",
        heading="prompts and output (tokens/s)",
        trial=served(lambda replay: (replay.output_tokens + replay.prompt_tokens) / replay.seconds),
        has=_serves,
        digits=3,
        json="serving.total_per_s",
    ),
    Quantity(
        name="user_per_s",
        heading="a user's (tokens/s)",
        trial=lambda trial: median(trial.user_rates) if trial.has_gaps else None,
        has=_serves,
        digits=3,
        is_key=True,
        json="serving.user_per_s",
    ),
    *_percentiles("ttft", "first token", "s", 1, first_tokens),
    *_percentiles("itl", "between tokens", "ms", 1e3, gaps),
    *_percentiles("end_to_end", "whole answer", "s", 1, whole_answers),
    Quantity(
        name="goodput",  # requests a second that keep the SLO
        heading="goodput (requests/s)",
        trial=lambda trial: None if (met := kept(trial)) is None else met / trial.replayed_s,
        has=_serves,
        digits=3,
        is_key=True,
        json="serving.goodput",
    ),
    Quantity(
        name="kept",
        heading="within the SLO (%)",
        trial=lambda trial: None if (met := kept(trial)) is None else met / len(trial.latencies),
        has=_serves,
        scale=100,
        digits=3,
        json="serving.kept",
    ),
    Quantity(
        name="waiting",  # requests, weighted by time
        heading="waiting, mean (requests)",
        trial=served(mean_waiting),
        has=_serves,
        digits=3,
        blanks=(DASH, "0"),
        json="serving.waiting",
    ),
    Quantity(
        name="most_waiting",
        heading="waiting, most (requests)",
        trial=served(lambda replay: max(expanded(replay.waiting))),
        has=_serves,
        digits=3,
        blanks=(DASH, "0"),
        json="serving.most_waiting",
    ),
    Quantity(
        name="cached",
        heading="prompt from the cache (%)",
        trial=served(lambda replay: sum(one.cached for one in replay.requests) / replay.prompt_tokens),
        has=_serves,
        scale=100,
        digits=3,
        blanks=(DASH, "0"),
        json="serving.cached",
    ),
    Quantity(
        name="scheduler",
        heading="scheduler and cache (% of a step)",
        trial=served(lambda replay: replay.scheduler_share),
        has=_serves,
        scale=100,
        digits=3,
        csv=False,
        json="serving.scheduler",
    ),
)
_PARTS = tuple(
    Quantity(
        name=f"{part}_s",
        heading=f"{part} (ms/step)",
        trial=part_of_step(f"{part}_s"),
        has=_trains,
        scale=1e3,
        is_key=part != "optimiser",
        json=f"parts.{part}_s",
    )
    for part in ("forward", "backward", "optimiser")
)
_ROLES = tuple(
    Quantity(
        name=name,
        heading=f"{name.replace('_', ' ')} (%)",
        trial=share_of_steps(f"{name}_s"),
        write=writing.whole_percent(name),
        why=_no_roles if name == "host_busy" else None,  # of a CUDA device there are the host's alone
        json=f"roles.{name}",
    )
    for name in ("host_busy", "device_busy", "overlap")
)
_MACHINE = (
    Quantity(
        name="joules_per_token",  # of whole chips: idle power and other programs' are not subtracted
        heading="energy (J/token)",
        trial=lambda trial: trial.energy and trial.energy.total_j / trial.tokens,
        is_key=True,
        why=_measured(lambda row: unmetered_reason(row.records)),
        json="energy.joules_per_token",
    ),
    Quantity(
        name="watts",
        heading="power (W)",
        trial=lambda trial: trial.energy and trial.energy.total_j / trial.energy.seconds,
        digits=3,
        json="energy.watts",
    ),
    Quantity(
        name="meters",
        trial=lambda trial: trial.energy and trial.energy.counted,
        reduce=last,
        json="energy.meters",
    ),
    Quantity(
        name="peak",
        trial=lambda trial: trial.record.conduct and trial.record.conduct.memory,
        reduce=most,
        why=_measured(lambda row: unseen_reason(row.records)),
        csv=False,
    ),
    Quantity(
        name="peak_memory_bytes",
        heading=writing.peak_heading,
        derive=lambda row: row.peak and row.peak.process_bytes,
        write=lambda row: dashed(row.peak, lambda peak: in_gib(peak.process_bytes)),
        json=None,
    ),
    Quantity(
        name="peak_memory_by_place",
        derive=lambda row: row.peak and row.peak.node_bytes | row.peak.device_bytes,
        csv_keys="peak_memory_{}_bytes",
        json=None,
    ),
)
_PROOF = (
    Quantity(
        name="evidence",
        heading=writing.evidence_heading,
        derive=attrgetter("evidence"),
        is_text=True,
        why=_no_counters,
    ),
    Quantity(
        name="error",
        heading="error (relative)",
        derive=attrgetter("error"),
        write=lambda row: dashed(row.error, "{:.1e}".format),
        why=_unchecked,
    ),
    Quantity(
        name="agreement",
        trial=lambda trial: trial.record.agreement,
        reduce=worst,
        always=True,
        csv=False,
    ),
    Quantity(
        name="top1_agreement",
        heading="top-1 agreement (%)",
        derive=lambda row: row.agreement and row.agreement.top1,
        write=writing.top1_text,
        is_key=True,
        json=None,
    ),
    Quantity(
        name="kl_nats",
        heading="KL (nats)",
        derive=lambda row: row.agreement and row.agreement.kl_nats,
        write=writing.kl_text,
        is_key=True,
        json=None,
    ),
    Quantity(name="agreement_against", derive=lambda row: row.agreement and row.agreement.against, json=None),
    Quantity(name="agreement_positions", derive=lambda row: row.agreement and row.agreement.positions, json=None),
    Quantity(name="unproven", derive=attrgetter("unproven"), json=None),
)
_LEARNING = (
    Quantity(name="first_loss", derive=lambda row: losses_of(row.records[-1])[0], has=_learns, json=None),
    Quantity(name="last_loss", derive=lambda row: losses_of(row.records[-1])[-1], has=_learns, json=None),
    Quantity(name="held_out_loss_before", derive=attrgetter("learning.before.loss"), has=_learns, json=None),
    Quantity(name="held_out_loss", derive=attrgetter("learning.after.loss"), has=_learns, json=None),
    Quantity(name="exact_before", derive=attrgetter("learning.before.exact"), has=_learns, json=None),
    Quantity(name="exact", derive=attrgetter("learning.after.exact"), has=_learns, json=None),
)
_TRIALS = (
    Quantity(
        name="disturbed_rounds",
        derive=lambda row: len(rounds_disturbed(row)) if any(record.conduct for record in row.records) else None,
        json=None,
    ),
    Quantity(
        name="rounds",
        heading="rounds",
        derive=attrgetter("rounds"),
        write=writing.count_text("rounds"),
        is_movable=True,
    ),
    Quantity(
        name="samples",
        heading="samples",
        derive=attrgetter("samples"),
        write=writing.count_text("samples"),
        is_movable=True,
    ),
    Quantity(
        name="provenance",
        heading="provenance",
        derive=attrgetter("provenance"),
        is_movable=True,
        is_text=True,
    ),
    Quantity(name="missing", derive=lambda row: pairs_text(row.missing), json=None),
    Quantity(name="remarks", derive=attrgetter("remarks")),
)
QUANTITIES: tuple[Quantity, ...] = (
    *_SPEEDS,
    *_COMPARED,
    *_ROOFS,
    *_SERVING,
    *_PARTS,
    *_ROLES,
    *_MACHINE,
    *_PROOF,
    *_LEARNING,
    *_TRIALS,
)


BY_NAME = {one.name: one for one in QUANTITIES}


def reasons_of(row: Row) -> Iterator[tuple[str, str]]:
    """Why values are missing, by their names in JSON; of a row that was not timed one reason for all of them."""
    if not row.timed:
        yield STEP.name, row.ending
        return
    for one in QUANTITIES:
        if one.why and one.value(row) is None and (reason := one.why(row)):
            yield one.place[0], reason
