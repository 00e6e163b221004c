"""One worker session: a loaded system runs trials and returns a record of each."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from random import Random, SystemRandom
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypeVar

from ktbench.engine.protocol import (
    Diverged,
    HasClock,
    Inspected,
    NotComputed,
    Replays,
    SelfTimed,
    System,
    TrainingSteps,
    Unsupported,
)
from ktbench.host.pauses import pauses
from ktbench.host.roofs import Roofs
from ktbench.host.threads import busy_threads
from ktbench.host.watch import MachineWatch
from ktbench.run.agreement import SavedLogits, agreement, collect_logits, disagreement
from ktbench.run.check import (
    ALWAYS_COMPARED,
    MOST_EXPERTS,
    Coverage,
    check,
    check_rows,
    check_the_check,
    drawn_calls,
    stale,
)
from ktbench.run.messages import RecordIds, new_record
from ktbench.run.serving.driver import RequestFailed
from ktbench.spec.peers import OURS, OWN, peer_of
from ktbench.spec.record import Agreement, Cell, Outcome, Record, RoleTimes, RoofSample, Work, collect, dishonest
from ktbench.spec.timeline import Timeline

T = TypeVar("T")
Clock = Callable[[], float]
# Samples in seconds, counters that moved, and the roofs before and after.
RoofPair = tuple[RoofSample, RoofSample]
Timed = tuple[tuple[float, ...], dict[str, int], RoofPair]
_MAX_WARM_UPS = 8
# Steps that take seconds are warm after one trial: remaining first touches are a small part of them.
_MAX_WARM_UP_S = 2.0
# Idle GPUs clock down within a second and take tens of milliseconds of work to come back.
_WAKE_S = 0.3
# A step that still touches fresh pages is not warm; a few faults are noise of the interpreter.
_FEW_FAULTS = 16


def time_steps(
    step: Callable[[], None],
    steps: int,
    clock: Clock = perf_counter,
    keep: Callable[[], None] = lambda: None,
    kept: Collection[int] = (),
) -> tuple[float, ...]:
    """Seconds of each of `steps` steps. Each mark ends one sample and begins the next.

    After the steps `kept`, counted from 0, `keep` is called before the mark: their output has to be there in time.
    """
    marks_s = [0.0] * (steps + 1)
    marks_s[0] = clock()
    for i in range(1, steps + 1):
        step()
        if i - 1 in kept:
            keep()
        marks_s[i] = clock()
    return tuple(end - begin for begin, end in pairwise(marks_s))


def warm_up(trial: Callable[[], None], faults: Callable[[], int] | None = None, clock: Clock = perf_counter) -> int:
    """Repeat an untimed trial until page faults stop, at most 8 times or 2 s. Returns the number of repetitions."""
    count = faults or page_faults
    began_s = clock()
    for done in range(1, _MAX_WARM_UPS + 1):
        before = count()
        trial()
        if count() - before <= _FEW_FAULTS or clock() - began_s > _MAX_WARM_UP_S:
            return done
    return _MAX_WARM_UPS


def page_faults() -> int:
    """Pages this process has faulted in so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


# Roofs and steps are not measured at the same moment: a step may reach somewhat more.
_MOST_SHARE = 1.2
# Samples until what a step reached is taken for impossible; roofs can only be disturbed downwards.
_ROOF_TRIES, _CEILING_TRIES = 3, 10

# Attempts to time a trial while something stops the process again and again.
_MAX_PAUSES = 5


# Repeating a step runs the same arithmetic; threads may only reorder the last additions of a bf16 result.
_REPEAT_TOLERANCE = 0.05


class WorkerSpoilt(Exception):
    """Something is left behind that would slow the trials of other cells: the worker has to end; the text says why."""


class TrialFailed(Exception):
    """A trial ends without samples; the outcome says why."""

    def __init__(self, outcome: Outcome, why: str, error: float | None = None) -> None:
        super().__init__(why)
        self.outcome, self.why, self.error = outcome, why, error


@dataclass(kw_only=True)
class Session:
    """Trials of cells that share one system. The ids go into every record.

    `pauses` counts how often the process was stopped: what is timed meanwhile is timed again. `draw` chooses the steps,
    tokens and experts that are compared: no operator can foresee them.
    """

    system: System
    roofs: Roofs
    ids: RecordIds
    watch: MachineWatch | None = None
    clock: Clock = perf_counter
    pauses: Callable[[], int] = pauses
    draw: Random = field(default_factory=SystemRandom)
    _coverage: dict[str, Coverage] = field(default_factory=dict)
    _survey_seed: int | None = None
    _fastest: dict[tuple[str | None, str], RoofSample] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    _agreed: dict[str, Agreement] = field(default_factory=dict)

    def trial(self, cell: Cell, round_number: int, logits: Path | None = None) -> Record:
        """One trial: warm up, time between two roof samples, then check the output and the features.

        `logits` is the file of the logits that those of this cell are compared with, or that they become. Raises
        WorkerSpoilt.
        """
        record, began = new_record(cell, round_number, self.ids, Outcome.CRASHED), self.clock()
        try:
            ending = {"outcome": Outcome.OK} | self._measure(cell, round_number)
            if logits is not None:
                ending["agreement"] = self._agree(cell, logits)
        except Unsupported as error:
            ending = {"outcome": Outcome.UNSUPPORTED, "why": str(error)}
        except (Diverged, NotComputed) as error:
            ending = {"outcome": Outcome.WRONG, "why": str(error)}
        except RequestFailed as failed:
            ending = {"outcome": Outcome.CRASHED, "why": str(failed)}
        except TrialFailed as failed:
            ending = {"outcome": failed.outcome, "why": failed.why, "error": failed.error}
        if _runs_foreign_code(cell) and (left := busy_threads()):
            raise WorkerSpoilt(f"peer.operator={cell.spec.peer.operator} left {left} busy threads behind")
        return replace(record, took_s=self.clock() - began, **ending)

    def timeline(self, cell: Cell) -> Timeline:
        """The timeline of the last step of a warm, untimed trial. Raises Unsupported."""
        self.system.configure(cell.spec)
        steps = cell.spec.workload.steps
        warm_up(lambda: self._untimed(steps), clock=self.clock)
        timeline, _ = self._unpaused(lambda: self._traced(steps))
        return timeline

    def _traced(self, steps: int) -> Timeline:
        self._untimed(steps)
        return self.system.timeline()

    def _measure(self, cell: Cell, round_number: int) -> dict[str, Any]:
        if self.watch is not None:
            self.watch.begin_trial()
        self.system.configure(cell.spec)
        if not isinstance(self.system, SelfTimed):
            self._warm(cell)
        drawn = self._coverage_of(cell).next_step()
        (samples_s, moved, roofs), paused = self._unpaused(lambda: self._timed(cell, round_number, drawn))
        work = self.system.work()
        roofs = self._undisturbed(cell, work, samples_s, roofs)
        proof: dict[str, Any] = {"work": work, "roofs": roofs}
        proof["conduct"] = None if self.watch is None else self.watch.metrics()
        proof["own_step_s"] = self.system.own_step_s() if isinstance(self.system, HasClock) else None
        proof["replay"] = self.system.replay() if isinstance(self.system, Replays) else None
        if isinstance(self.system, TrainingSteps):
            proof |= {"parts": self.system.parts(), "learning": self.system.learning()}
        error = self._checked_error(cell, drawn)
        proof["compared"] = self._coverage_of(cell).compared if isinstance(self.system, Inspected) else None
        proof["notes"] = (*self.system.notes(), *_loops(moved), *paused, *_gap(samples_s))  # some are of the check
        self._checked.add(cell.key)
        if work is not None and (why := self._implausible(work, samples_s, roofs)):
            raise TrialFailed(Outcome.IMPLAUSIBLE, why, error)
        evidence = collect({**cell.spec.engine.features, **self.system.chosen()}, moved)
        if why := dishonest(evidence):
            raise TrialFailed(Outcome.IDLE, why, error)
        replay = proof["replay"]
        roles = _roles(moved, sum(samples_s) if replay is None else replay.seconds)
        return proof | {"samples_s": samples_s, "evidence": evidence, "error": error, "roles": roles}

    def _unpaused(self, measure: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
        """What `measure` gives when the process is not stopped meanwhile, and a note where it was before.

        Raises TrialFailed where it is stopped again and again.
        """
        for paused in range(_MAX_PAUSES):
            before = self.pauses()
            found = measure()
            if self.pauses() == before:
                return found, (f"timed {paused + 1} times, as the process was stopped meanwhile",) if paused else ()
        raise TrialFailed(Outcome.TIMEOUT, f"the process was stopped in each of {_MAX_PAUSES} attempts to time it")

    def _undisturbed(self, cell: Cell, work: Work | None, samples_s: Sequence[float], roofs: RoofPair) -> RoofPair:
        """The roofs, sampled again where the steps are faster than they allow: something may have slowed them alone.

        Not in every round for a cell that is faster than all roofs so far allow: its weights stay in a cache.
        """
        if work is None:
            return roofs
        isa, dtype = cell.spec.engine.isa, cell.spec.dtype
        fastest = self._fastest.get((isa, dtype), roofs[0])
        in_cache = cell.key in self._checked and _beyond(work, samples_s, (fastest, fastest))
        for _ in range(0 if in_cache else _ROOF_TRIES):
            if not _beyond(work, samples_s, roofs):
                break
            again = self.roofs.sample(isa, dtype)
            roofs = _faster(roofs[0], again), _faster(roofs[1], again)
        self._fastest[isa, dtype] = reduce(_faster, roofs, fastest)
        return roofs

    def _implausible(self, work: Work, samples_s: Sequence[float], roofs: RoofPair) -> str:
        """Why no step can be as fast as these; empty where it can, be it by weights that stay in a cache."""
        if isinstance(self.system, Replays) or not _beyond(work, samples_s, roofs):
            return ""
        taken_s, least_s = median(samples_s), 0.0
        for tried in range(_CEILING_TRIES):
            ceiling = self.roofs.ceiling(work.weight_bytes, again=tried > 0)
            least_s = work.least_s(ceiling.read_bytes_per_s, ceiling.peak_flops)
            if least_s <= _MOST_SHARE * taken_s:
                return ""
        return (
            f"a step of {1000 * taken_s:.3g} ms reads {work.weight_bytes:,} bytes of weights and does {work.flops:,} "
            f"operations, which takes {1000 * least_s:.3g} ms at least ({ceiling.read_bytes_per_s / 1e9:.3g} GB/s, "
            f"{ceiling.peak_flops / 1e12:.3g} TFLOPS)"
        )

    def _coverage_of(self, cell: Cell) -> Coverage:
        return self._coverage.setdefault(cell.key, Coverage(steps=cell.spec.workload.steps, draw=self.draw))

    def _timed(self, cell: Cell, round_number: int, drawn: int) -> Timed:
        if not isinstance(self.system, SelfTimed):
            self._begin(round_number)
        before = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        self._wake(cell, round_number)
        counted = dict(self.system.counters())
        samples_s = self._samples_s(cell, drawn)
        moved = _moved(counted, self.system.counters())
        after = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        return samples_s, moved, (before, after)

    def _begin(self, round_number: int | None) -> None:
        """Back to before step 0 with the tokens of a round, which no step had before; None: the workload's own."""
        if isinstance(self.system, Inspected):
            self.system.renew(round_number)
        self.system.start()

    def _warm(self, cell: Cell) -> None:
        if cell.key not in self._checked:
            warm_up(lambda: self._warm_trial(cell), clock=self.clock)

    def _warm_trial(self, cell: Cell) -> None:
        self._untimed(cell.spec.workload.few_steps)
        if isinstance(self.system, Inspected):
            self.system.keep()

    def _wake(self, cell: Cell, round_number: int) -> None:
        """Untimed steps that bring back the clocks of a GPU, which has had nothing to do for a while."""
        if cell.spec.engine.device != "cuda" or isinstance(self.system, SelfTimed):
            return
        began_s = self.clock()
        self._untimed(cell.spec.workload.few_steps)
        while self.clock() - began_s < _WAKE_S:
            self._untimed(cell.spec.workload.few_steps)
        self._begin(round_number)

    def _samples_s(self, cell: Cell, drawn: int) -> tuple[float, ...]:
        system, steps = self.system, cell.spec.workload.steps
        if isinstance(system, SelfTimed):
            return system.own_samples_s()
        keep, kept = (system.keep, {drawn, steps - 1}) if isinstance(system, Inspected) else (lambda: None, set[int]())
        cpu_s, threads = process_time(), torch_threads()
        with nullcontext() if self.watch is None else self.watch.steps():
            steps_s = time_steps(system.step, steps, self.clock, keep, kept)
        if _runs_foreign_code(cell):
            require_threads(cell, threads, process_time() - cpu_s, sum(steps_s))
        stream = cell.spec.workload.stream
        if stream is None or not isinstance(self.system, Replays):
            return steps_s
        return self.system.replay().samples_s(len(steps_s), is_open=stream.is_open)

    def _untimed(self, steps: int) -> None:
        self._begin(None)
        for _ in range(steps):
            self.system.step()

    def _checked_error(self, cell: Cell, drawn: int) -> float | None:
        """The error of the output where it has one and is compared. Raises TrialFailed for a wrong output."""
        if isinstance(self.system, Replays):
            self._check_answers(self.system, cell)
            return None
        if _is_black_box(cell) or (isinstance(self.system, Inspected) and not self._coverage_of(cell).is_due()):
            return None
        error = self._check_output(cell, drawn)
        if isinstance(self.system, Inspected):
            self._check_experts(self.system, cell, error)
        return error

    def _check_answers(self, system: Replays, cell: Cell) -> None:
        """Raises TrialFailed for answers that the engine does not give to one request alone."""
        if why := system.differing(cell.spec.tolerance):
            raise TrialFailed(Outcome.WRONG, why)
        if cell.key not in self._checked and (why := system.passed_mutant(cell.spec.tolerance)):
            raise TrialFailed(Outcome.VACUOUS, why)

    def _check_output(self, cell: Cell, drawn: int) -> float | None:
        """Largest error of the step that was drawn, repeated under observation. Raises TrialFailed for a wrong output.

        Of a layer the very output of the timed step is compared. Without copies of steps it is the last one.
        """
        tolerance, system = cell.spec.tolerance, self.system
        if isinstance(system, Inspected):
            timed, seen = system.kept(drawn), system.observe(drawn, self.draw.getrandbits(32))
            if cell.key in self._checked:
                seen = drawn_calls(seen, self.draw)
        else:
            timed, seen = system.logits(), system.observe()
        verdict = check(seen, self.system.reference, tolerance)
        if verdict.outcome is not Outcome.OK:
            raise TrialFailed(verdict.outcome, verdict.why, verdict.error)
        if why := stale(timed, self.system.logits(), _REPEAT_TOLERANCE):
            raise TrialFailed(Outcome.WRONG, why, verdict.error)
        if cell.key not in self._checked and (why := check_the_check(seen[:1], self.system.reference, tolerance)):
            raise TrialFailed(Outcome.VACUOUS, why, verdict.error)
        self._coverage_of(cell).saw(drawn)
        return verdict.error

    def _check_experts(self, system: Inspected, cell: Cell, error: float | None) -> None:
        """Compares a part of all experts, which over the least rounds of this worker is all. Raises TrialFailed."""
        if self._survey_seed is None:
            self._survey_seed = self.draw.getrandbits(32)
        plan, coverage = system.survey(self._survey_seed, MOST_EXPERTS), self._coverage_of(cell)
        rounds = min(cell.spec.measure.min_rounds // cell.spec.measure.reload_blocks, ALWAYS_COMPARED)
        for unit in coverage.next_units(plan, rounds):
            found = system.meet(unit)
            if why := check_rows(found.seen, found.truth, cell.spec.tolerance):
                raise TrialFailed(Outcome.WRONG, why, error)
            coverage.met(found.met)

    def _agree(self, cell: Cell, file: Path) -> Agreement | None:
        """Once per session: agreement of the cell's logits with those in the file, which they become if it is missing.

        A black box, and a cell whose logits differ on purpose, cannot be the reference: there is no agreement until
        another cell has written the file.
        """
        if cell.key in self._agreed or isinstance(self.system, SelfTimed):
            return self._agreed.get(cell.key)
        reference = SavedLogits.read(file)
        if reference is None and (_is_black_box(cell) or _alters(cell)):
            return None
        self._begin(None)
        own = collect_logits(self.system.step, self.system.logits, cell.spec.workload.few_steps)
        if reference is None:
            reference = SavedLogits(label=cell.label, cell=cell.key, logits=own)
            reference.save(file)
        found = agreement(reference, own)
        if not _alters(cell) and (why := disagreement(reference, found)):
            raise TrialFailed(Outcome.WRONG, why)
        self._agreed[cell.key] = replace(found, against="") if reference.cell == cell.key else found
        return self._agreed[cell.key]


def _runs_foreign_code(cell: Cell) -> bool:
    """Whether the cell runs an operator of the user's own."""
    return cell.spec.peer.implementation == OWN


# Cores that an operator may use beyond its threads, and seconds for threads of OpenMP that spin after earlier work.
_SPARE_CORES, _SPARE_S = 0.5, 0.02


def require_threads(cell: Cell, threads: int, cpu_s: float, took_s: float) -> None:
    """Raises TrialFailed where the timed steps ran on more threads than the cell has."""
    allowed = cell.spec.engine.threads
    now = torch_threads()
    if now != threads or (allowed is not None and now > allowed):
        raise TrialFailed(Outcome.IDLE, f"the operator set PyTorch's threads to {now}")
    if allowed is not None and cpu_s > (allowed + _SPARE_CORES) * took_s + _SPARE_S:
        used = f"{cpu_s / took_s:.1f} cores were busy"
        raise TrialFailed(Outcome.IDLE, f"{used}, engine.threads={allowed} requested")


def torch_threads() -> int:
    """PyTorch's threads; 0 where it is not loaded."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())


def _is_black_box(cell: Cell) -> bool:
    return cell.spec.system != OURS and peer_of(cell.spec.system).black_box


def _alters(cell: Cell) -> bool:
    """Deferral and skipping change the logits on purpose; their agreement is a result."""
    return bool(cell.spec.engine.deferral or cell.spec.engine.skipping)


def _roles(moved: Mapping[str, int], total_s: float) -> RoleTimes | None:
    """None where the system has no counter of its host role; that of the device's waiting is there on cores alone."""
    if "host_busy_ns" not in moved:
        return None
    waited_ns = moved.get("device_wait_ns")
    return RoleTimes(
        host_busy_s=moved["host_busy_ns"] / 1e9,
        device_wait_s=None if waited_ns is None else waited_ns / 1e9,
        total_s=total_s,
    )


def _beyond(work: Work, samples_s: Sequence[float], roofs: RoofPair) -> bool:
    """Whether the median step is faster than the faster one of each roof allows."""
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops is not None]
    least_s = work.least_s(max(roof.read_bytes_per_s for roof in roofs), max(peaks, default=None))
    return least_s > _MOST_SHARE * median(samples_s)


def _faster(one: RoofSample, other: RoofSample) -> RoofSample:
    """The faster one of each roof."""
    peaks = [roof.peak_flops for roof in (one, other) if roof.peak_flops is not None]
    read = max(one.read_bytes_per_s, other.read_bytes_per_s)
    return replace(one, read_bytes_per_s=read, peak_flops=max(peaks, default=None))


# Counter of the expert kernels -> the loop that it counts the calls of.
_LOOPS = {"stream_calls": "streams", "fetching_calls": "streams with prefetches", "block_calls": "register blocks"}


def _loops(moved: Mapping[str, int]) -> tuple[str, ...]:
    """Which loops of the vector kernels took which calls; empty where none did."""
    taken = [f"{moved[counter]} by {loop}" for counter, loop in _LOOPS.items() if moved.get(counter)]
    return (f"calls of the expert kernels: {', '.join(taken)}",) if taken else ()


# A step that takes so much longer than others was paused by something that does not tell: a frozen container.
_GAP, _GAP_S = 10.0, 0.5


def _gap(samples_s: Sequence[float]) -> tuple[str, ...]:
    """A note of a pause between two readings of the clock; the sample is kept."""
    longest_s, usual_s = max(samples_s), median(samples_s)
    if longest_s < max(_GAP * usual_s, usual_s + _GAP_S):
        return ()
    return (f"one step took {longest_s:.3g} s, the median one {usual_s:.3g} s: the machine may have been paused",)


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
