"""The table of quantities. CSV, JSON, frames, tables and tooltips are loops over it: a new column is a new row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    of_replay,
    part_of_step,
    percentile_of,
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


# Rows of the table: of trials that served requests, of what JSON has in the row itself, and of tables alone.
_served = partial(Quantity, has=_serves, digits=3, json="serving.")
_in_files = partial(Quantity, json=None)
_in_tables = partial(Quantity, csv=False, json=None)


def _percentiles(
    name: str, what: str, unit: str, scale: float, seconds: Callable[[Trial], Sequence[float]]
) -> Iterator[Quantity[Row]]:
    """Percentiles over the requests of a trial; a table in a paper has room for the least and the largest."""
    for percent, share in SHARES.items():
        yield Quantity(
            f"{name}_{percent}_s",
            f"{what} {percent} ({unit})",
            percentile_of(share, seconds),
            has=_serves,
            scale=scale,
            digits=3,
            is_key=percent != "p90",
            json=f"serving.{name}_s.{percent}",
        )


STEP = Quantity(
    "step_s",
    writing.time_heading,
    lambda trial: trial.step_s,
    write=writing.step_text,
    is_key=True,
    why=lambda row: row.ending,
)
_SPEEDS: tuple[Quantity[Row], ...] = (
    _in_tables(
        "experts_bytes",
        writing.only_frontiers("experts (GiB)"),
        derive=experts_bytes,
        scale=2**-30,
        digits=3,
        is_key=True,
    ),
    _in_tables("stored_bits", writing.only_frontiers("bits a weight"), derive=stored_bits, digits=3, is_key=True),
    STEP,
    Quantity("tokens_per_s", writing.speed_heading, is_interval=True, is_key=True),
    _in_files("of_layers", derive=lambda row: row.spec.model.full_layers if row.spec.model.is_slice else None),
    Quantity("whole_tokens_per_s", "whole model, extrapolated (tokens/s)", is_interval=True, why=_no_whole),
)
_COMPARED: tuple[Quantity[Row], ...] = (
    Quantity(
        "speedup",
        "speed-up (×)",
        derive=lambda row: exact(1.0) if row.is_baseline and row.timed else row.speedup,
        is_interval=True,
        write=writing.speedup_text,
        is_key=True,
        json=None,
    ),
    Quantity(
        "verdict",
        "verdict",
        derive=lambda row: row.speedup and row.verdict,
        write=writing.verdict_text,
        is_text=True,
        is_key=True,
        json=None,
    ),
    _in_files("comparable_rounds", "comparable rounds", derive=comparable, is_movable=True, is_key=True),
    Quantity(
        "gain",
        "gain of the last feature (×)",
        derive=lambda row: row.gain and row.gain.ratio,
        is_interval=True,
        write=writing.gain_text,
        is_text=True,
        blanks=(DASH, writing.AS_SPEEDUP),
        json=None,
    ),
    _in_files("gain_over", derive=lambda row: row.gain and row.gain.over),
    _in_files("gain_verdict", derive=lambda row: row.gain and row.gain.verdict),
)
_ROOFS: tuple[Quantity[Row], ...] = (
    Quantity("read_bytes_per_s", "weights read (GB/s)", scale=1e-9, digits=3, why=_no_work),
    Quantity("flops_per_s", writing.rate_heading, scale=1e-12, digits=3, why=_no_work),
    _in_tables("arithmetic", writing.mixed_heading, derive=attrgetter("flops_per_s"), write=writing.rate_text),
    Quantity(
        "roof_share",
        "of roof (%)",
        lambda trial: trial.bound_s and trial.bound_s / trial.step_s,
        write=writing.roof_text,
        is_key=True,
        why=_no_roof,
        json="roof.share",
    ),
    Quantity(
        "nearer_roof",
        "nearer roof",
        lambda trial: trial.least_s and trial.least_s[1] - trial.least_s[0],
        reduce=nearer,
        write=writing.limit_text,
        is_movable=True,
        is_text=True,
        json="roof.limit",
    ),
    Quantity(
        "peak_isa", trial=lambda trial: trial.least_s and trial.record.roofs[0].peak_isa, reduce=last, json="roof."
    ),
    Quantity(
        "peak_dtype", trial=lambda trial: trial.least_s and trial.record.roofs[0].peak_dtype, reduce=last, json="roof."
    ),
    # trials whose own roofs were not used because the machine changed during them
    Quantity(
        "roofs_left_out",
        trial=lambda trial: None if trial.bound_s is None else trial.least_s is None,
        reduce=sum,
        csv=False,
        json="roof.left_out",
    ),
    # whether any trial has roofs that hold for it; where none does, all are used all the same
    Quantity(
        "roofs_steady",
        trial=lambda trial: None if trial.bound_s is None else trial.is_steady,
        reduce=any,
        csv=False,
        json="roof.steady",
    ),
)
_SERVING: tuple[Quantity[Row], ...] = (
    _served("output_per_s", trial=of_replay(lambda replay: replay.output_tokens / replay.seconds)),
    _served(
        "total_per_s",
        "prompts and output (tokens/s)",
        of_replay(lambda replay: (replay.output_tokens + replay.prompt_tokens) / replay.seconds),
    ),
    _served(
        "user_per_s",
        "a user's (tokens/s)",
        lambda trial: median(trial.user_rates) if trial.has_gaps else None,
        is_key=True,
    ),
    *_percentiles("ttft", "first token", "s", 1, first_tokens),
    *_percentiles("itl", "between tokens", "ms", 1e3, gaps),
    *_percentiles("end_to_end", "whole answer", "s", 1, whole_answers),
    # requests a second that keep the SLO
    _served(
        "goodput",
        "goodput (requests/s)",
        lambda trial: None if (met := kept(trial)) is None else met / trial.replayed_s,
        is_key=True,
    ),
    _served(
        "kept",
        "within the SLO (%)",
        lambda trial: None if (met := kept(trial)) is None else met / len(trial.latencies),
        scale=100,
    ),
    # requests, weighted by time
    _served("waiting", "waiting, mean (requests)", of_replay(mean_waiting), blanks=(DASH, "0")),
    _served(
        "most_waiting",
        "waiting, most (requests)",
        of_replay(lambda replay: max(expanded(replay.waiting))),
        blanks=(DASH, "0"),
    ),
    _served(
        "cached",
        "prompt from the cache (%)",
        of_replay(lambda replay: sum(one.cached for one in replay.requests) / replay.prompt_tokens),
        scale=100,
        blanks=(DASH, "0"),
    ),
    _served(
        "scheduler",
        "scheduler and cache (% of a step)",
        of_replay(lambda replay: replay.scheduler_share),
        scale=100,
        csv=False,
    ),
)
_PARTS: tuple[Quantity[Row], ...] = tuple(
    Quantity(
        f"{part}_s",
        f"{part} (ms/step)",
        part_of_step(f"{part}_s"),
        has=_trains,
        scale=1e3,
        is_key=part != "optimiser",
        json=f"parts.{part}_s",
    )
    for part in ("forward", "backward", "optimiser")
)
_ROLES: tuple[Quantity[Row], ...] = tuple(
    Quantity(
        name,
        f"{name.replace('_', ' ')} (%)",
        share_of_steps(f"{name}_s"),
        write=writing.whole_percent(name),
        why=_no_roles if name == "host_busy" else None,  # of a CUDA device there are the host's alone
        json=f"roles.{name}",
    )
    for name in ("host_busy", "device_busy", "overlap")
)
_MACHINE: tuple[Quantity[Row], ...] = (
    # of whole chips: idle power and other programs' are not subtracted
    Quantity(
        "joules_per_token",
        "energy (J/token)",
        lambda trial: trial.energy and trial.energy.total_j / trial.tokens,
        is_key=True,
        why=_measured(lambda row: unmetered_reason(row.records)),
        json="energy.",
    ),
    Quantity(
        "watts",
        "power (W)",
        lambda trial: trial.energy and trial.energy.total_j / trial.energy.seconds,
        digits=3,
        json="energy.",
    ),
    Quantity("meters", trial=lambda trial: trial.energy and trial.energy.counted, reduce=last, json="energy."),
    Quantity(
        "peak",
        trial=lambda trial: trial.record.system_metrics and trial.record.system_metrics.memory,
        reduce=most,
        why=_measured(lambda row: unseen_reason(row.records)),
        csv=False,
    ),
    Quantity(
        "peak_memory_bytes",
        writing.peak_heading,
        derive=lambda row: row.peak and row.peak.process_bytes,
        write=lambda row: dashed(row.peak, lambda peak: in_gib(peak.process_bytes)),
        json=None,
    ),
    Quantity(
        "peak_memory_by_place",
        derive=lambda row: row.peak and row.peak.node_bytes | row.peak.device_bytes,
        csv_keys="peak_memory_{}_bytes",
        json=None,
    ),
)
_PROOF: tuple[Quantity[Row], ...] = (
    Quantity("evidence", writing.evidence_heading, is_text=True, why=_no_counters),
    Quantity("error", "error (relative)", show="{:.1e}".format, why=_unchecked),
    Quantity("agreement", trial=lambda trial: trial.record.agreement, reduce=worst, always=True, csv=False),
    Quantity(
        "top1_agreement",
        "top-1 agreement (%)",
        derive=lambda row: row.agreement and row.agreement.top1,
        write=writing.top1_text,
        is_key=True,
        json=None,
    ),
    Quantity(
        "kl_nats",
        "KL (nats)",
        derive=lambda row: row.agreement and row.agreement.kl_nats,
        write=writing.kl_text,
        is_key=True,
        json=None,
    ),
    _in_files("agreement_against", derive=lambda row: row.agreement and row.agreement.against),
    _in_files("agreement_positions", derive=lambda row: row.agreement and row.agreement.positions),
    _in_files("unproven"),
)
_LEARNING: tuple[Quantity[Row], ...] = (
    _in_files("first_loss", derive=lambda row: losses_of(row.records[-1])[0], has=_learns),
    _in_files("last_loss", derive=lambda row: losses_of(row.records[-1])[-1], has=_learns),
    _in_files("held_out_loss_before", derive=attrgetter("learning.before.loss"), has=_learns),
    _in_files("held_out_loss", derive=attrgetter("learning.after.loss"), has=_learns),
    _in_files("exact_before", derive=attrgetter("learning.before.exact"), has=_learns),
    _in_files("exact", derive=attrgetter("learning.after.exact"), has=_learns),
)
_TRIALS: tuple[Quantity[Row], ...] = (
    Quantity(
        "disturbed_rounds",
        derive=lambda row: len(rounds_disturbed(row)) if any(record.system_metrics for record in row.records) else None,
        json=None,
    ),
    Quantity("rounds", "rounds", write=writing.count_text("rounds"), is_movable=True),
    Quantity("samples", "samples", write=writing.count_text("samples"), is_movable=True),
    Quantity("provenance", "provenance", is_movable=True, is_text=True),
    _in_files("missing", derive=lambda row: pairs_text(row.missing)),
    Quantity("remarks"),
)
QUANTITIES: tuple[Quantity[Row], ...] = (
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
