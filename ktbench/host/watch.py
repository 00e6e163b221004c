"""Watches the machine during a turn: what disturbs the timed steps, what energy they take, how much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from ktbench.host.energy import Meters, energy_between
from ktbench.host.noise import disturbance, read_clock_hz, read_counters
from ktbench.host.peak import MemoryPeaks
from ktbench.spec.system_metrics import Conduct, Disturbance, Energy


class MachineWatch:
    """Watches `cpus` and this process. Nothing is read between entering and leaving `steps`."""

    def __init__(self, cpus: Sequence[int], meters: Meters, root: Path = Path("/")) -> None:
        self._cpus, self._meters, self._root = tuple(cpus), meters, root
        self._peaks = MemoryPeaks(root)
        self._disturbance: Disturbance | None = None
        self._energy: Energy | None = None
        self._no_energy = ""

    def turn(self) -> None:
        """A turn begins."""
        self._disturbance = None
        self._peaks.reset()

    @contextmanager
    def steps(self) -> Iterator[None]:
        """The timed steps are inside."""
        before = read_counters(self._cpus, self._root)
        joules, began_s = self._joules(), perf_counter()
        yield
        seconds, joules_then = perf_counter() - began_s, self._joules()
        clock_hz = read_clock_hz(self._cpus, self._root)
        after = read_counters(self._cpus, self._root)
        self._disturbance = disturbance(before, after, self._cpus, clock_hz)
        self._take_energy(joules, joules_then, seconds)

    def conduct(self) -> Conduct | None:
        """What was seen since `turn`; None where no steps were."""
        if self._disturbance is None:
            return None
        memory = self._peaks.read()
        missing = {
            "energy": self._no_energy,
            "memory": "" if memory else "no VmHWM in /proc/self/status",
            "nodes": self._peaks.missing,
        }
        return Conduct(
            disturbance=self._disturbance,
            energy=self._energy,
            memory=memory,
            missing={name: why for name, why in missing.items() if why},
        )

    def _joules(self) -> dict[str, float] | str:
        try:
            return self._meters.read()
        except OSError as error:
            return str(error)

    def _take_energy(self, before: dict[str, float] | str, after: dict[str, float] | str, seconds: float) -> None:
        if isinstance(before, str) or isinstance(after, str):
            found: Energy | str = next(why for why in (before, after) if isinstance(why, str))
        else:
            found = energy_between(self._meters.meters, before, after, seconds)
        self._energy, lost = (None, found) if isinstance(found, str) else (found, "")
        self._no_energy = "; ".join(filter(None, [self._meters.reason, lost]))
