"""A scripted engine that cheats gets the outcome it deserves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ktbench.engine.protocol import Unsupported
from ktbench.host.roofs import Ceiling
from ktbench.run.check import drawn_calls
from ktbench.run.messages import RecordIds
from ktbench.run.session import _WAKE_S, Session
from ktbench.run.timing import excess_threads, time_steps, torch_threads, warm_up
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME, Feature
from ktbench.spec.record import Outcome, Record, RoleTimes, RoofSample
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.system_metrics import InterferenceCounters, SystemMetrics
from tests.fake import FakeRoofs, FakeSystem
from tests.tiny import tiny_cell

IDS = RecordIds(code_id="code", env_id="env", worker_session="here")


def session(script: str, label: str = "+v") -> Session:
    system = FakeSystem({label: script}, step_s=0.0)
    return Session(system=system, roofs=FakeRoofs(), ids=IDS)


def turns(script: str, count: int = 1, **engine: Any) -> list[Record]:
    sitting = session(script)
    return [sitting.trial(tiny_cell("+v", **({"avx512": True} | engine)), number) for number in range(count)]


def test_honest_engine_is_ok_with_everything_needed_to_trust_it() -> None:
    record = turns("")[0]
    assert record.outcome is Outcome.OK
    assert len(record.samples_s) == 3
    assert record.error == 0.0
    assert len(record.roofs) == 2
    assert {e.feature: e.seen for e in record.evidence}["avx512"] == 3
    assert record.work is not None
    assert record.took_s >= sum(record.samples_s)


@pytest.mark.parametrize(
    ("script", "outcome", "why"),
    [
        ("lie", Outcome.IDLE, "v: avx512_calls 0, requested on"),
        ("sneak", Outcome.IDLE, "m: amx_tiles 3, requested off"),
        ("zeros", Outcome.WRONG, "relative error 1, tolerance 0.01"),
        ("nan", Outcome.WRONG, "output is not finite"),
        ("cached logits", Outcome.WRONG, "the timed step's logits differ from its repetition"),
        ("blind", Outcome.VACUOUS, "no experts call was observed"),
        ("vacuous", Outcome.VACUOUS, "the check would pass another token's output"),
        ("unsupported", Outcome.UNSUPPORTED, "the fake engine has no such feature"),
    ],
)
def test_dishonest_engine_keeps_no_sample(script: str, outcome: Outcome, why: str) -> None:
    record = turns(script)[0]
    assert (record.outcome, record.samples_s) == (outcome, ())
    assert why in record.why


def test_stale_output_is_caught_from_the_second_turn_on() -> None:
    first, second = turns("stale", count=2)
    assert first.outcome is Outcome.OK
    assert second.outcome is Outcome.WRONG


def test_every_turn_is_checked_not_only_the_first() -> None:
    sitting = session("")
    cell = tiny_cell("+v", avx512=True)
    assert sitting.trial(cell, 0).outcome is Outcome.OK
    sitting.system.scripts = {"+v": "zeros"}  # type: ignore[attr-defined]
    assert sitting.trial(cell, 1).outcome is Outcome.WRONG


@pytest.mark.parametrize("alters", [True, False])
def test_experts_that_differ_on_purpose_show_their_error_and_pass(
    alters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Feature(name="own", title="", off=0, counter="own_calls", hook=int, alters_experts=alters)
    monkeypatch.setitem(BY_NAME, "own", own)
    for script, passes in (("zeros", alters), ("nan", False), ("cached logits", False)):
        system = FakeSystem({"+v own=1": script}, step_s=0.0)
        cell = tiny_cell("+v own=1", avx512=True, own={"own": 1})
        record = Session(system=system, roofs=FakeRoofs(), ids=IDS).trial(cell, 0)
        assert record.outcome is (Outcome.OK if passes else Outcome.WRONG), script
        assert record.error == {"zeros": 1.0, "nan": None, "cached logits": 0.0}[script]


class Drawn(Random):
    """Draws steps in an order that a test knows."""

    def __init__(self, *steps: int) -> None:
        super().__init__(0)
        self._steps = steps

    def sample(self, population: Any, k: int, *, counts: Any = None) -> list[Any]:
        if not isinstance(population, range):
            return super().sample(population, k, counts=counts)
        assert sorted(self._steps) == list(population)[:k]
        return list(reversed(self._steps))


class WrongIn(FakeSystem):
    """Gives wrong logits in one timed step and right ones whenever it is repeated."""

    def __init__(self, step: int) -> None:
        super().__init__({}, step_s=0.0)
        self.wrong_in = step

    def keep(self) -> None:
        super().keep()
        if self.at - 1 == self.wrong_in:
            self.copies[self.at - 1] = -self.copies[self.at - 1]


def test_each_step_is_compared_once_before_any_comes_again() -> None:
    sitting = Session(system=WrongIn(1), roofs=FakeRoofs(), ids=IDS, draw=Drawn(2, 0, 1))
    cell = tiny_cell("+v", avx512=True)
    records = [sitting.trial(cell, number) for number in range(3)]
    assert [record.outcome for record in records] == [Outcome.OK, Outcome.OK, Outcome.WRONG]
    assert [one.compared.steps for one in records[:2] if one.compared is not None] == [1, 2]


class Chances(Random):
    """Chances that a test knows, after which all are missed."""

    def __init__(self, *chances: float) -> None:
        super().__init__(0)
        self._chances = list(chances)

    def random(self) -> float:
        return self._chances.pop(0) if self._chances else 1.0

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)  # or samples would be drawn from the chances


def test_after_the_first_rounds_those_that_are_drawn_are_compared() -> None:
    system = FakeSystem({}, step_s=0.0)
    sitting = Session(system=system, roofs=FakeRoofs(), ids=IDS, draw=Chances(0.9, 0.1, 0.9, 0.1))
    cell = tiny_cell("+v", avx512=True)
    found = [sitting.trial(cell, number).error is not None for number in range(9)]
    assert found == [True] * 6 + [False, True, False]
    system.scripts = {"+v": "zeros"}
    assert sitting.trial(cell, 9).outcome is Outcome.WRONG


def test_of_the_observed_calls_a_quarter_is_compared_after_the_first_trial() -> None:
    system = FakeSystem({}, step_s=0.0)
    seen = tuple(system.observe()[0] for _ in range(9))
    assert len(drawn_calls(seen, Random(0))) == 3
    assert {id(one) for n in range(40) for one in drawn_calls(seen, Random(n))} == {id(one) for one in seen}


def test_the_output_of_the_drawn_and_of_the_last_step_is_copied_within_their_time() -> None:
    calls: list[str] = []

    def clock() -> float:
        calls.append("clock")
        return float(len(calls))

    time_steps(lambda: calls.append("step"), 4, clock, lambda: calls.append("keep"), {1, 3})
    assert calls == ["clock", *["step", "clock", "step", "keep", "clock"] * 2]


def test_timed_steps_have_tokens_of_their_round_that_no_step_had_before() -> None:
    sitting = session("")
    for number in (0, 4):
        sitting.trial(tiny_cell("+v", avx512=True), number)
    renewed = sitting.system.renewed  # type: ignore[attr-defined]
    assert renewed == [None] * (len(renewed) - 2) + [0, 4]


@pytest.mark.parametrize(
    ("measure", "experts"),
    [({}, [6, 12, 12]), ({"min_rounds": 6, "max_rounds": 6, "reload_blocks": 2}, [4, 8, 12])],
    ids=["one load", "three rounds a load"],
)
def test_every_expert_is_compared_over_the_least_rounds(measure: dict[str, int], experts: list[int]) -> None:
    sitting = session("")
    cell = tiny_cell("+v", avx512=True, measure=measure)
    compared = [sitting.trial(cell, number).compared for number in range(3)]
    assert [(one.experts, one.of_experts) for one in compared if one] == [(met, 12) for met in experts]


def test_one_wrong_expert_is_found_over_the_least_rounds() -> None:
    records = turns("expert 3", count=2)
    assert Outcome.WRONG in [record.outcome for record in records]
    assert any("a token of experts 2, 3" in record.why for record in records)


class Limited(FakeRoofs):
    """Slow where it is read at first, with a ceiling of its own."""

    def __init__(self, reads: list[float], ceiling: float) -> None:
        self._reads, self._ceiling = reads, ceiling
        self.samples, self.asked_again = 0, list[bool]()

    def sample(self, isa: str | None, dtype: str = "bf16") -> RoofSample:
        self.samples += 1
        read = self._reads.pop(0) if len(self._reads) > 1 else self._reads[0]
        return replace(super().sample(isa, dtype), read_bytes_per_s=read)

    def ceiling(self, _weight_bytes: int, *, again: bool = False) -> Ceiling:
        self.asked_again.append(again)
        return Ceiling(read_bytes_per_s=self._ceiling, peak_flops=1e18)


def limited(reads: list[float], ceiling: float) -> Record:
    """Of steps that read 1,000 bytes in a second."""
    ticks = iter(range(1000))
    sitting = Session(
        system=FakeSystem({}, 0.0), roofs=Limited(reads, ceiling), ids=IDS, clock=lambda: float(next(ticks))
    )
    return sitting.trial(tiny_cell("+v", avx512=True), 0)


def test_steps_that_are_faster_than_any_roof_are_no_speed() -> None:
    record = limited([500.0], ceiling=600.0)
    assert (record.outcome, record.samples_s) == (Outcome.IMPLAUSIBLE, ())
    assert "1,000 bytes" in record.why


@pytest.mark.parametrize("ceiling", [834.0, 1e6], ids=["within the margin", "in a cache"])
def test_what_some_level_of_memory_allows_is_a_speed(ceiling: float) -> None:
    assert limited([500.0], ceiling).outcome is Outcome.OK


def test_a_roof_that_was_disturbed_is_sampled_again() -> None:
    record = limited([100.0, 100.0, 100.0, 1100.0], ceiling=1.0)
    assert record.outcome is Outcome.OK
    assert [roof.read_bytes_per_s for roof in record.roofs] == [1100.0, 1100.0]


def test_roofs_are_sampled_again_in_the_first_round_alone_for_what_stays_in_a_cache() -> None:
    ticks, roofs = iter(range(1000)), Limited([500.0], 1e6)
    sitting = Session(system=FakeSystem({}, 0.0), roofs=roofs, ids=IDS, clock=lambda: float(next(ticks)))
    taken = []
    for number in range(3):
        assert sitting.trial(tiny_cell("+v", avx512=True), number).outcome is Outcome.OK
        taken.append(roofs.samples)
    assert (taken, roofs.asked_again) == ([5, 7, 9], [False] * 3)


def test_roofs_that_were_disturbed_in_a_later_round_are_sampled_again() -> None:
    ticks, roofs = iter(range(1000)), Limited([1100.0, 1100.0, 100.0, 100.0, 1100.0], 1.0)
    sitting = Session(system=FakeSystem({}, 0.0), roofs=roofs, ids=IDS, clock=lambda: float(next(ticks)))
    records = [sitting.trial(tiny_cell("+v", avx512=True), number) for number in range(2)]
    assert [record.outcome for record in records] == [Outcome.OK] * 2
    assert [roof.read_bytes_per_s for record in records for roof in record.roofs] == [1100.0] * 4


@pytest.mark.parametrize(("cpu_s", "passes"), [(1.4, True), (1.6, False)])
def test_an_operator_has_the_cores_that_its_threads_need(cpu_s: float, passes: bool) -> None:
    assert (excess_threads(EngineSpec(threads=1), torch_threads(), cpu_s, 1.0) == "") == passes


def test_samples_are_the_time_between_two_readings_of_the_clock() -> None:
    ticks = iter(range(1000))
    sitting = session("")
    sitting.clock = lambda: float(next(ticks))
    assert sitting.trial(tiny_cell("+v", avx512=True), 0).samples_s == (1.0, 1.0, 1.0)


def test_roles_apart_are_timed_by_their_counters_over_the_timed_steps() -> None:
    ticks = iter(range(1000))
    sitting = session("")
    sitting.clock = lambda: float(next(ticks))
    cell = tiny_cell("+v", avx512=True, roles="split")
    for number in range(2):  # what an earlier turn or the warm-up counted is not this turn's
        assert sitting.trial(cell, number).roles == RoleTimes(host_busy_s=2.1e-3, device_wait_s=0.6e-3, total_s=3.0)


def test_a_cuda_device_waits_unseen() -> None:
    roles = session("").trial(tiny_cell("+v", avx512=True, device="cuda"), 0).roles
    assert roles is not None
    assert (roles.device_wait_s, roles.device_busy_s, roles.overlap_s) == (None, None, None)
    assert roles.host_busy_s > 0


def test_without_counters_of_roles_there_are_no_times() -> None:
    assert turns("")[0].roles is None


def test_the_systems_remarks_are_kept() -> None:
    sitting = session("")
    sitting.system.remarks = ("deferral=auto chose 3",)  # type: ignore[attr-defined]
    assert sitting.trial(tiny_cell("+v", avx512=True), 0).notes == ("deferral=auto chose 3",)


def test_deferral_that_the_system_chose_must_be_seen() -> None:
    record = turns("", deferral="auto")[0]
    assert record.outcome is Outcome.OK
    assert {e.feature: (e.asked, e.seen) for e in record.evidence}["deferral"] == (3, 3)
    lying = session("lie", label="+v deferral=auto").trial(
        tiny_cell("+v deferral=auto", avx512=True, deferral="auto"), 0
    )
    assert (lying.outcome, "deferred_experts" in lying.why) == (Outcome.IDLE, True)


def test_of_deferral_the_system_may_choose_none() -> None:
    cell = tiny_cell("+v deferral=auto", avx512=True, deferral="auto")
    sneaking = session("")
    sneaking.system.choice = 0  # type: ignore[attr-defined]
    turn = sneaking.trial(cell, 0)
    assert (turn.outcome, "deferral: deferred_experts 3, requested off" in turn.why) == (Outcome.IDLE, True)


def test_a_timeline_is_that_of_the_last_step_of_a_warm_turn() -> None:
    sitting = session("")
    timeline = sitting.timeline(tiny_cell("+v", avx512=True))
    assert timeline.title == "step 3 of +v"
    assert sitting.system.steps >= 2 * 3  # type: ignore[attr-defined]


def test_a_timeline_that_there_cannot_be_says_why() -> None:
    with pytest.raises(Unsupported, match="no such feature"):
        session("unsupported").timeline(tiny_cell("+v", avx512=True))


class Watcher:
    """Notes in which order it is asked."""

    def __init__(self, clock: list[str]) -> None:
        self.seen = clock

    def begin_trial(self) -> None:
        self.seen.append("turn")

    @contextmanager
    def steps(self) -> Iterator[None]:
        self.seen.append("before")
        yield
        self.seen.append("after")

    def metrics(self) -> SystemMetrics:
        quiet = InterferenceCounters(seconds=1.0, cpus=2, preemptions=0, minor_faults=0, major_faults=0)
        return SystemMetrics(disturbance=quiet, missing={"energy": "no meter"})


def test_the_watch_looks_right_before_and_right_after_the_timed_steps() -> None:
    seen: list[str] = []

    def clock() -> float:
        seen.append("clock")
        return float(len(seen))

    sitting = session("")
    sitting.watch, sitting.clock = Watcher(seen), clock
    record = sitting.trial(tiny_cell("+v", avx512=True), 0)
    assert record.system_metrics is not None
    assert record.system_metrics.missing == {"energy": "no meter"}
    assert seen[seen.index("before") : seen.index("after") + 1] == ["before", *["clock"] * 4, "after"]
    assert seen.index("turn") < seen.index("before")


class Followed(FakeSystem):
    """A system whose steps alone take time; `seen` says what happened, and when."""

    def __init__(self, step_s: float) -> None:
        super().__init__({}, step_s=0.0)
        self.lasts_s, self.now_s = step_s, 0.0
        self.seen: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.seen.append((what, self.now_s))

    def configure(self, spec: RunSpec) -> None:
        self.note("configure")
        super().configure(spec)

    def start(self) -> None:
        self.note("start")
        super().start()

    def step(self) -> None:
        super().step()
        self.now_s += self.lasts_s
        self.note("step")


class FollowedRoofs(FakeRoofs):
    """Notes when it is asked: a GPU has nothing to do meanwhile."""

    def __init__(self, system: Followed) -> None:
        self._system = system

    def sample(self, isa: str | None, dtype: str = "bf16") -> RoofSample:
        self._system.note("roof")
        return super().sample(isa, dtype)


@pytest.mark.parametrize("step_s", [0.01, 0.12, 1.0])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_is_awake_when_its_steps_are_timed(device: str, step_s: float) -> None:
    """In every trial, with untimed steps after the roof is sampled; cores need none."""
    system = Followed(step_s)
    sitting = Session(
        system=system, roofs=FollowedRoofs(system), ids=RecordIds(code_id="", env_id=""), clock=lambda: system.now_s
    )
    cell = tiny_cell("+v", avx512=True, device=device)
    for number in range(2):
        system.seen.clear()
        assert sitting.trial(cell, number).samples_s == pytest.approx((step_s,) * 3)
        names = [what for what, _ in system.seen]
        before, after = (i for i, what in enumerate(names) if what == "roof")
        assert names[0] == "configure"
        assert names[after - 3 : after] == ["step"] * 3
        untimed = system.seen[before + 1 : after - 3]
        if device == "cpu":
            assert untimed == []
            continue
        assert untimed[-1][0] == "start", "the first step is the first one that is timed"
        assert untimed[-1][1] - untimed[0][1] >= _WAKE_S
        assert names[before:after].count("step") % 3 == 0, "workloads run to their ends"


def test_where_nobody_watches_nothing_is_seen() -> None:
    assert turns("")[0].system_metrics is None


@pytest.mark.parametrize(
    ("faults", "clock", "trials"),
    [
        ([0, 500, 500, 600, 600, 603], [0.0] * 9, 3),
        (range(0, 10_000, 100), [0.0] * 9, 8),
        (range(0, 10_000, 100), [10.0, 13.0], 1),
    ],
    ids=["until page faults stop", "at most 8", "seconds are enough"],
)
def test_warm_up_ends(faults: Iterable[int], clock: list[float], trials: int) -> None:
    counts, times = iter(faults), iter(clock)
    assert warm_up(lambda: None, lambda: next(counts), lambda: next(times)) == trials
