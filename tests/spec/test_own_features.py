"""Features from outside: values, labels, ids, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.host.capabilities import feature_reasons
from ktbench.spec import features
from ktbench.spec.cells import plan_cells, points_of
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME, Feature, FeatureValue, features_label, outside, parse_features, register_file
from ktbench.spec.record import Evidence, collect, dishonest, idle_by_data
from ktbench.spec.support import unsupported
from ktbench.spec.sweep import SweepSpec
from ktbench.spec.wire import from_wire, spec_id, to_wire
from tests.tiny import tiny_spec


def feature(**changes: Any) -> Feature:
    return Feature(
        **{"name": "low_gate", "title": "t", "off": 0.0, "counter": "low", "hook": lambda value: value} | changes
    )


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """The table as it was, afterwards."""
    before = dict(BY_NAME)
    yield
    BY_NAME.clear()
    BY_NAME.update(before)


def test_it_is_no_part_of_a_cell_without_it() -> None:
    before = spec_id(tiny_spec()), EngineSpec()
    features.register(feature())
    off = tiny_spec(own={"low_gate": 0.0}, own_file="f.py", own_id="abc")
    assert (spec_id(tiny_spec()), EngineSpec()) == before
    assert (spec_id(off), off.label) == (before[0], "base")
    on = tiny_spec(own={"low_gate": 0.1}, own_file="f.py", own_id="abc")
    assert spec_id(on) == spec_id(replace(on, engine=replace(on.engine, own_file="elsewhere/f.py")))
    others = [tiny_spec(own={"low_gate": 0.2}, own_id="abc"), tiny_spec(own={"low_gate": 0.1}, own_id="abd")]
    assert len({spec_id(one) for one in (on, off, *others)}) == 4


@pytest.mark.parametrize(
    ("off", "value", "text"),
    [(0.0, 0.25, "0.25"), (0.0, 1e-7, "1e-07"), (0, -3, "-3"), (False, True, "true"), ("", "fast", "fast")],
)
def test_a_label_keeps_a_value_of_any_type(off: FeatureValue, value: FeatureValue, text: str) -> None:
    features.register(feature(off=off))
    engine = EngineSpec(avx512=True, own={"low_gate": value})
    assert engine.label == f"+v low_gate={text}"
    assert EngineSpec().with_features(parse_features(engine.label)) == engine
    assert parse_features("+v")["low_gate"] == off


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (feature(), "a"),
        (feature(), True),
        (feature(), float("nan")),
        (feature(off=0), 0.5),
        (feature(off=False), 1),
        (feature(off="none", names=("none", "one")), "two"),
    ],
)
def test_a_value_of_another_kind_is_refused(row: Feature, value: FeatureValue) -> None:
    features.register(row)
    with pytest.raises(ValueError, match=r"engine\.own\.low_gate=.*allowed"):
        row.require(value)
    assert EngineSpec(own={"low_gate": value}).own == {"low_gate": value}  # a log may have it
    with pytest.raises(ValueError, match="low_gate"):
        parse_features("low_gate=")


@pytest.mark.parametrize(
    "changes",
    [{"name": "deferral"}, {"name": "Low Gate"}, {"hook": None}, {"letter": "x"}, {"counter": "avx512_calls"}],
)
def test_a_row_that_cannot_be_told_from_others_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="feature"):
        features.register(feature(**changes))


def test_arms_with_it_are_compared_at_one_point() -> None:
    features.register(feature())
    arms = ("base", "low_gate=0.1", "low_gate=0.2")
    cells = plan_cells(tiny_spec(), SweepSpec(arms=arms))
    assert [cell.spec.engine.own.get("low_gate") for cell in cells] == [None, 0.1, 0.2, None]
    assert points_of(cells) == (cells,)


def test_needs_limits_and_what_it_requires_are_those_of_any_feature() -> None:
    limits = (features.Limit(lambda spec: spec.workload.batch > 1, lambda spec: f"not with {spec.workload.batch}"),)
    features.register(feature(needs=("amx",), requires=("avx512",), limits=limits))
    assert (
        feature_reasons(dict.fromkeys(("avx2", "avx512", "numa", "cuda", "stream_memory"), "") | {"amx": "no AMX"})[
            "low_gate"
        ]
        == "no AMX"
    )
    assert unsupported(tiny_spec(own={"low_gate": 0.1})) == "engine.own.low_gate=0.1: needs +v"
    on: dict[str, Any] = {"avx512": True, "own": {"low_gate": 0.1}}
    assert unsupported(tiny_spec(**on)) == ""
    assert unsupported(tiny_spec(**on, workload={"batch": 2})) == "engine.own.low_gate=0.1: not with 2"
    assert "CPU cores" in unsupported(tiny_spec(**on, device="cuda"))
    assert unsupported(tiny_spec(**on, phase="layer")).startswith("workload.phase=layer: ")


def test_a_log_with_an_unknown_one_shows_it_by_its_name() -> None:
    features.register(feature())
    plain = to_wire(tiny_spec(avx512=True, own={"low_gate": 0.1}, own_id="abc"))
    known = from_wire(plain, type(tiny_spec()))
    del BY_NAME["low_gate"]
    unknown = from_wire(plain, type(tiny_spec()))
    assert unknown.label == known.label == "+v low_gate=0.1"
    assert (spec_id(unknown), unknown.engine.features) == (spec_id(known), known.engine.features)
    assert features_label(unknown.engine.features) == known.label


def test_one_that_data_may_leave_without_work_says_so() -> None:
    features.register(feature(may_be_zero=True))
    requested = EngineSpec(own={"low_gate": 0.1}).features
    for count, note in ((0, "low_gate: low 0, requested on: nothing to do on this data"), (3, "")):
        evidence = collect(requested, {"low": count})
        assert dishonest(evidence) == ""
        assert idle_by_data(evidence) == note
    assert dishonest(collect(requested, {})) == "low_gate: low not counted, requested on"
    assert not Evidence(feature="low_gate", asked=0.0, counter="low", seen=2).honest


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = 1", "names no FEATURE"),
        ("FEATURE = 3", "names no FEATURE"),
        (
            "from ktbench.spec.features import *\nFEATURE = Feature(name='amx', title='', off=0, counter='', hook=int)",
            "change the name",
        ),
    ],
)
def test_a_file_that_brings_none_is_refused_in_one_line(code: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(code)
    with pytest.raises(ValueError, match=why) as refused:
        register_file(str(file))
    assert str(refused.value).startswith(f"engine.own_file={file}: ")
    assert "\n" not in str(refused.value)


class Point:
    """An entry point."""

    def __init__(self, name: str, row: object) -> None:
        self.name, self.value, self.row = name, "package:ROW", row

    def load(self) -> object:
        if isinstance(self.row, Exception):
            raise self.row
        return self.row


def test_an_installed_package_brings_a_row_and_a_broken_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point("low_gate", feature()), Point("broken", OSError("gone")), Point("amx", feature(name="amx"))]
    monkeypatch.setattr("ktbench.spec.features.outside.metadata.entry_points", lambda group: points)
    amx = BY_NAME["amx"]
    outside.plug_in()
    assert parse_features("low_gate=0.5")["low_gate"] == 0.5
    assert BY_NAME["amx"] is amx
    broken = tiny_spec(own={"broken": "on"})
    assert unsupported(broken) == "engine.own.broken=on: package:ROW: OSError: gone"
