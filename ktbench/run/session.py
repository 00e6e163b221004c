"""One worker session: a loaded system runs trials and returns a record of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom
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
from ktbench.run.plausible import Plausibility, RoofPair
from ktbench.run.serving.driver import RequestFailed
from ktbench.run.timing import Clock, excess_threads, gap_note, time_steps, torch_threads, warm_up
from ktbench.spec.peers import IMPLEMENTATION_OWN, OURS, peer_of
from ktbench.spec.record import Agreement, Cell, Outcome, Record, RoleTimes, collect, dishonest, idle_by_data
from ktbench.spec.timeline import Timeline

T = TypeVar("T")
# Samples in seconds, counters that moved, and the roofs before and after.
Timed = tuple[tuple[float, ...], dict[str, int], RoofPair]
# Idle GPUs clock down within a second and take tens of milliseconds of work to come back.
_WAKE_S = 0.3
# Attempts to time a trial if something keeps stopping the process.
_MAX_PAUSES = 5


# Repeating a step runs the same arithmetic; threads may only reorder the last additions of a bf16 result.
_REPEAT_TOLERANCE = 0.05


class WorkerSpoilt(Exception):
    """Something is left that would slow the trials of other cells, so the worker must end; the text says why."""


class TrialFailed(Exception):
    """A trial ends without samples; the outcome says why."""

    def __init__(self, outcome: Outcome, why: str, error: float | None = None) -> None:
        super().__init__(why)
        self.outcome, self.why, self.error = outcome, why, error


@dataclass(kw_only=True)
class Session:
    """Trials of cells that share one system. The ids go into every record.

    `pauses` counts how often the process was stopped: trials timed meanwhile are timed again. `draw` chooses the steps,
    tokens and experts that are compared, which no operator can predict.
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
    _plausible: Plausibility = field(init=False)
    _checked: set[str] = field(default_factory=set)
    _agreed: dict[str, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plausible = Plausibility(roofs=self.roofs)

    def trial(self, cell: Cell, round_number: int, logits: Path | None = None) -> Record:
        """One trial: warm up, time between two roof samples, then check the output and the features.

        `logits` is the file with which this cell's logits are compared, or to which they are written. Raises
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
        warm_up(lambda: self._run_untimed(steps), clock=self.clock)
        timeline, _ = self._measure_unpaused(lambda: self._trace(steps))
        return timeline

    def _trace(self, steps: int) -> Timeline:
        self._run_untimed(steps)
        return self.system.timeline()

    def _measure(self, cell: Cell, round_number: int) -> dict[str, Any]:
        if self.watch is not None:
            self.watch.begin_trial()
        self.system.configure(cell.spec)
        if not isinstance(self.system, SelfTimed):
            self._warm(cell)
        drawn = self._coverage_of(cell).next_step()
        (samples_s, moved, roofs), paused = self._measure_unpaused(lambda: self._time(cell, round_number, drawn))
        work = self.system.work()
        if work is not None:
            roofs = self._plausible.undisturbed_roofs(cell, work, samples_s, roofs, first=cell.key not in self._checked)
        proof: dict[str, Any] = {"work": work, "roofs": roofs}
        proof["system_metrics"] = None if self.watch is None else self.watch.metrics()
        proof["own_step_s"] = self.system.own_step_s() if isinstance(self.system, HasClock) else None
        proof["replay"] = self.system.replay() if isinstance(self.system, Replays) else None
        if isinstance(self.system, TrainingSteps):
            proof |= {"parts": self.system.parts(), "learning": self.system.learning()}
        error = self._checked_error(cell, drawn)
        proof["compared"] = self._coverage_of(cell).compared if isinstance(self.system, Inspected) else None
        proof["notes"] = (*self.system.notes(), *_loops(moved), *paused, *gap_note(samples_s))  # some are of the check
        self._checked.add(cell.key)
        served = isinstance(self.system, Replays)
        if work is not None and not served and (why := self._plausible.why_impossible(work, samples_s, roofs)):
            raise TrialFailed(Outcome.IMPLAUSIBLE, why, error)
        evidence = collect({**cell.spec.engine.features, **self.system.chosen()}, moved)
        if why := dishonest(evidence):
            raise TrialFailed(Outcome.IDLE, why, error)
        if note := idle_by_data(evidence):
            proof["notes"] = (*proof["notes"], note)
        replay = proof["replay"]
        roles = _roles(moved, sum(samples_s) if replay is None else replay.seconds)
        return proof | {"samples_s": samples_s, "evidence": evidence, "error": error, "roles": roles}

    def _measure_unpaused(self, measure: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
        """The result of `measure` without a stop of the process, and a note if there was one before.

        Raises TrialFailed if the process keeps being stopped.
        """
        for paused in range(_MAX_PAUSES):
            before = self.pauses()
            measured = measure()
            if self.pauses() == before:
                return measured, (f"timed {paused + 1} times, as the process was stopped meanwhile",) if paused else ()
        raise TrialFailed(Outcome.TIMEOUT, f"the process was stopped in each of {_MAX_PAUSES} attempts to time it")

    def _coverage_of(self, cell: Cell) -> Coverage:
        return self._coverage.setdefault(cell.key, Coverage(steps=cell.spec.workload.steps, draw=self.draw))

    def _time(self, cell: Cell, round_number: int, drawn: int) -> Timed:
        if not isinstance(self.system, SelfTimed):
            self._begin(round_number)
        before = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        self._wake(cell, round_number)
        counted = dict(self.system.counters())
        samples_s = self._samples_s(cell, drawn)
        moved = _moved_counters(counted, self.system.counters())
        after = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        return samples_s, moved, (before, after)

    def _begin(self, round_number: int | None) -> None:
        """Restart before step 0 with new tokens for a round; None: the workload's own tokens."""
        if isinstance(self.system, Inspected):
            self.system.renew(round_number)
        self.system.start()

    def _warm(self, cell: Cell) -> None:
        if cell.key not in self._checked:
            warm_up(lambda: self._warm_trial(cell), clock=self.clock)

    def _warm_trial(self, cell: Cell) -> None:
        self._run_untimed(cell.spec.workload.few_steps)
        if isinstance(self.system, Inspected):
            self.system.keep()

    def _wake(self, cell: Cell, round_number: int) -> None:
        """Untimed steps that raise the clocks of a GPU that has been idle."""
        if cell.spec.engine.device != "cuda" or isinstance(self.system, SelfTimed):
            return
        began_s = self.clock()
        self._run_untimed(cell.spec.workload.few_steps)
        while self.clock() - began_s < _WAKE_S:
            self._run_untimed(cell.spec.workload.few_steps)
        self._begin(round_number)

    def _samples_s(self, cell: Cell, drawn: int) -> tuple[float, ...]:
        system, steps = self.system, cell.spec.workload.steps
        if isinstance(system, SelfTimed):
            return system.own_samples_s()
        keep, kept = (system.keep, {drawn, steps - 1}) if isinstance(system, Inspected) else (lambda: None, set[int]())
        cpu_s, threads = process_time(), torch_threads()
        with nullcontext() if self.watch is None else self.watch.steps():
            steps_s = time_steps(system.step, steps, self.clock, keep, kept)
        busy_s = process_time() - cpu_s
        if _runs_foreign_code(cell) and (why := excess_threads(cell.spec.engine, threads, busy_s, sum(steps_s))):
            raise TrialFailed(Outcome.IDLE, why)
        stream = cell.spec.workload.stream
        if stream is None or not isinstance(self.system, Replays):
            return steps_s
        return self.system.replay().samples_s(len(steps_s), is_open=stream.is_open)

    def _run_untimed(self, steps: int) -> None:
        self._begin(None)
        for _ in range(steps):
            self.system.step()

    def _checked_error(self, cell: Cell, drawn: int) -> float | None:
        """The error of the output, if it is compared. Raises TrialFailed for a wrong output."""
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
        """Raises TrialFailed for answers that differ from those to single requests."""
        if why := system.differing(cell.spec.tolerance):
            raise TrialFailed(Outcome.WRONG, why)
        if cell.key not in self._checked and (why := system.passed_mutant(cell.spec.tolerance)):
            raise TrialFailed(Outcome.VACUOUS, why)

    def _check_output(self, cell: Cell, drawn: int) -> float | None:
        """Largest error of the drawn step, repeated under observation. Raises TrialFailed for a wrong output.

        For a layer, the output of the timed step itself is compared. Without copies of steps it is the last one.
        """
        tolerance, system = cell.spec.tolerance, self.system
        if isinstance(system, Inspected):
            timed, seen = system.kept(drawn), system.observe(drawn, self.draw.getrandbits(32))
            if cell.key in self._checked:
                seen = drawn_calls(seen, self.draw)
        else:
            timed, seen = system.logits(), system.observe()
        verdict = check(seen, self.system.reference, tolerance)
        if cell.spec.engine.alters_experts and verdict.error is not None:
            verdict, seen = replace(verdict, outcome=Outcome.OK), ()  # its error is a result
        if verdict.outcome is not Outcome.OK:
            raise TrialFailed(verdict.outcome, verdict.why, verdict.error)
        if why := stale(timed, self.system.logits(), _REPEAT_TOLERANCE):
            raise TrialFailed(Outcome.WRONG, why, verdict.error)
        checked = [call for call in seen if (call.ids >= 0).any()][:1]
        if cell.key not in self._checked and (why := check_the_check(checked, self.system.reference, tolerance)):
            raise TrialFailed(Outcome.VACUOUS, why, verdict.error)
        self._coverage_of(cell).add_step(drawn)
        return verdict.error

    def _check_experts(self, system: Inspected, cell: Cell, error: float | None) -> None:
        """Compares a part of all experts, so that the minimum number of rounds covers all. Raises TrialFailed."""
        if self._survey_seed is None:
            self._survey_seed = self.draw.getrandbits(32)
        plan, coverage = system.survey(self._survey_seed, MOST_EXPERTS), self._coverage_of(cell)
        rounds = min(cell.spec.measure.min_rounds // cell.spec.measure.reload_blocks, ALWAYS_COMPARED)
        for unit in coverage.next_units(plan, rounds):
            met = system.meet(unit)
            why = check_rows(met.seen, met.truth, cell.spec.tolerance)
            if why and not cell.spec.engine.alters_experts:
                raise TrialFailed(Outcome.WRONG, why, error)
            coverage.add_experts(met.met)

    def _agree(self, cell: Cell, file: Path) -> Agreement | None:
        """Once per session: agreement of the cell's logits with those in the file, or writes the file if it is missing.

        A black box, and a cell whose logits differ on purpose, cannot be the reference: there is no agreement until
        another cell has written the file. If they differ on purpose, the agreement is a result and fails nothing.
        """
        if cell.key in self._agreed or isinstance(self.system, SelfTimed):
            return self._agreed.get(cell.key)
        reference = SavedLogits.read(file)
        if reference is None and (_is_black_box(cell) or cell.spec.engine.alters_outputs):
            return None
        self._begin(None)
        own = collect_logits(self.system.step, self.system.logits, cell.spec.workload.few_steps)
        if reference is None:
            reference = SavedLogits(label=cell.label, cell=cell.key, logits=own)
            reference.save(file)
        result = agreement(reference, own)
        if not cell.spec.engine.alters_outputs and (why := disagreement(reference, result)):
            raise TrialFailed(Outcome.WRONG, why)
        self._agreed[cell.key] = replace(result, against="") if reference.cell == cell.key else result
        return self._agreed[cell.key]


def _runs_foreign_code(cell: Cell) -> bool:
    """Whether the cell runs an operator of the user's own."""
    return cell.spec.peer.implementation == IMPLEMENTATION_OWN


def _is_black_box(cell: Cell) -> bool:
    return cell.spec.system != OURS and peer_of(cell.spec.system).black_box


def _roles(moved: Mapping[str, int], total_s: float) -> RoleTimes | None:
    """None if the system does not count its host role; the device's waiting is counted only on CPU cores."""
    if "host_busy_ns" not in moved:
        return None
    waited_ns = moved.get("device_wait_ns")
    return RoleTimes(
        host_busy_s=moved["host_busy_ns"] / 1e9,
        device_wait_s=None if waited_ns is None else waited_ns / 1e9,
        total_s=total_s,
    )


# Counter of the expert kernels -> the loop that it counts the calls of.
_LOOPS = {"stream_calls": "streams", "fetching_calls": "streams with prefetches", "block_calls": "register blocks"}


def _loops(moved: Mapping[str, int]) -> tuple[str, ...]:
    """How many calls each loop of the vector kernels took; empty without any."""
    taken = [f"{moved[counter]} by {loop}" for counter, loop in _LOOPS.items() if moved.get(counter)]
    return (f"calls of the expert kernels: {', '.join(taken)}",) if taken else ()


def _moved_counters(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
