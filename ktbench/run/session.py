"""One sitting: a worker's system takes the turns it is told to and answers each with a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from ktbench.engine.protocol import HasClock, SelfTimed, System, Unsupported
from ktbench.run.agreement import Answers, agreement, collect_answers, disagreement
from ktbench.run.check import check, check_the_check, stale
from ktbench.run.clock import Clock, time_steps, warm_up
from ktbench.run.watching import Unwatched, Watch
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Agreement, Cell, Outcome, Record, RoleTimes, RoofSample, collect, dishonest
from ktbench.spec.timeline import Timeline

# Repeating a step runs the same arithmetic; threads may only reorder the last additions of a bf16 result.
_REPEAT_TOLERANCE = 0.05


class RoofSampler(Protocol):
    """Where the machine's limits are read: `ktbench.host.roofs.Roofs` or a test's stand-in."""

    def sample(self, isa: str | None, dtype: str = "bf16") -> RoofSample:
        """The limits at this moment, the arithmetic one that of an instruction set on numbers of `dtype`.

        None stands for the best instruction set granted.
        """


class Broken(Exception):
    """A turn that ends without samples, for a reason that is a value and not a fault."""

    def __init__(self, outcome: Outcome, why: str, error: float | None = None) -> None:
        super().__init__(why)
        self.outcome, self.why, self.error = outcome, why, error


@dataclass(kw_only=True)
class Session:
    """Turns of cells that share one system. Ids and the sitting's name go into every record as they are given."""

    system: System
    roofs: RoofSampler
    code_id: str
    env_id: str
    sitting: str
    watch: Watch = field(default_factory=Unwatched)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Clock = perf_counter
    _checked: set[str] = field(default_factory=set)
    _agreed: dict[str, Agreement] = field(default_factory=dict)

    def turn(self, cell: Cell, round_number: int, logits: Path | None = None) -> Record:
        """One turn: warm, time between two roof samples, then prove the output and the features.

        `logits` is the file of the logits that those of this cell are held against, or that they become.
        """
        record, began = self._blank(cell, round_number), self.clock()
        try:
            ending = {"outcome": Outcome.OK} | self._measure(cell)
            if logits is not None:
                ending["agreement"] = self._agree(cell, logits)
        except Unsupported as error:
            ending = {"outcome": Outcome.UNSUPPORTED, "why": str(error)}
        except Broken as broken:
            ending = {"outcome": broken.outcome, "why": broken.why, "error": broken.error}
        return replace(record, took_s=self.clock() - began, **ending)

    def timeline(self, cell: Cell) -> Timeline:
        """What the roles did in the last step of a warm, untimed turn. Raises Unsupported."""
        self.system.configure(cell.spec)
        steps = cell.spec.workload.steps
        warm_up(lambda: self._untimed(steps), clock=self.clock)
        self._untimed(steps)
        return self.system.timeline()

    def _blank(self, cell: Cell, round_number: int) -> Record:
        return Record(
            cell=cell.key,
            label=cell.label,
            round=round_number,
            outcome=Outcome.CRASHED,
            provenance="measured",
            code_id=self.code_id,
            env_id=self.env_id,
            sitting=self.sitting,
            started=self.now().isoformat(timespec="seconds"),
        )

    def _measure(self, cell: Cell) -> dict[str, Any]:
        self.watch.turn()
        self.system.configure(cell.spec)
        if not isinstance(self.system, SelfTimed):
            self._warm(cell)
        before = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        counted = dict(self.system.counters())
        samples_s = self._samples_s(cell)
        moved = _moved(counted, self.system.counters())
        after = self.roofs.sample(cell.spec.engine.isa, cell.spec.dtype)
        proof: dict[str, Any] = {"work": self.system.work(), "notes": self.system.notes(), "roofs": (before, after)}
        proof["conduct"] = self.watch.conduct()
        proof["own_step_s"] = self.system.own_step_s() if isinstance(self.system, HasClock) else None
        error = None if _is_black_box(cell) else self._prove_output(cell)
        self._checked.add(cell.key)
        evidence = collect({**cell.spec.engine.features, **self.system.chosen()}, moved)
        if why := dishonest(evidence):
            raise Broken(Outcome.IDLE, why, error)
        roles = _roles(moved, samples_s)
        return proof | {"samples_s": samples_s, "evidence": evidence, "error": error, "roles": roles}

    def _warm(self, cell: Cell) -> None:
        if cell.key not in self._checked:
            warm_up(lambda: self._untimed(cell.spec.workload.steps), clock=self.clock)
        self.system.start()

    def _samples_s(self, cell: Cell) -> tuple[float, ...]:
        if isinstance(self.system, SelfTimed):
            return self.system.own_samples_s()
        with self.watch.steps():
            return time_steps(self.system.step, cell.spec.workload.steps, self.clock)

    def _untimed(self, steps: int) -> None:
        self.system.start()
        for _ in range(steps):
            self.system.step()

    def _prove_output(self, cell: Cell) -> float | None:
        """Largest error of the turn's last step, repeated under observation; raises Broken where it is not right."""
        tolerance = cell.spec.tolerance
        timed = self.system.logits()
        seen = self.system.observe()
        verdict = check(seen, self.system.reference, tolerance)
        if verdict.outcome is not Outcome.OK:
            raise Broken(verdict.outcome, verdict.why, verdict.error)
        if why := stale(timed, self.system.logits(), _REPEAT_TOLERANCE):
            raise Broken(Outcome.WRONG, why, verdict.error)
        if cell.key not in self._checked and (why := check_the_check(seen[:1], self.system.reference, tolerance)):
            raise Broken(Outcome.VACUOUS, why, verdict.error)
        return verdict.error

    def _agree(self, cell: Cell, file: Path) -> Agreement | None:
        """Once a sitting: this cell's logits against those in the file; they go there where it holds none.

        A system whose experts nobody sees, and a cell that means to give other logits, is nobody's reference: it waits
        until another has put its logits there.
        """
        if cell.key in self._agreed or isinstance(self.system, SelfTimed):
            return self._agreed.get(cell.key)
        reference = Answers.read(file)
        if reference is None and (_is_black_box(cell) or _alters(cell)):
            return None
        self.system.start()
        own = collect_answers(self.system.step, self.system.logits, cell.spec.workload.steps)
        if reference is None:
            reference = Answers(label=cell.label, cell=cell.key, logits=own)
            reference.save(file)
        found = agreement(reference, own)
        if not _alters(cell) and (why := disagreement(reference, found)):
            raise Broken(Outcome.WRONG, why)
        self._agreed[cell.key] = replace(found, against="") if reference.cell == cell.key else found
        return self._agreed[cell.key]


def _is_black_box(cell: Cell) -> bool:
    return cell.spec.system != "ktbench" and BY_NAME[cell.spec.system].black_box


def _alters(cell: Cell) -> bool:
    """Deferral and skipping mean to give other logits; how far off is what they are measured for."""
    return bool(cell.spec.engine.deferral or cell.spec.engine.skipping)


def _roles(moved: Mapping[str, int], samples_s: Sequence[float]) -> RoleTimes | None:
    """None where the system does not count what its roles did."""
    if "host_busy_ns" not in moved or "device_wait_ns" not in moved:
        return None
    busy_s, wait_s = moved["host_busy_ns"] / 1e9, moved["device_wait_ns"] / 1e9
    return RoleTimes(host_busy_s=busy_s, device_wait_s=wait_s, total_s=sum(samples_s))


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
