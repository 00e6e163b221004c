"""Price lists of machines, and the cheapest that reaches a speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ktbench.sim.advising.prices import Offer, PriceEntry, cheapest, closest, offer, read_prices
from ktbench.sim.simulation import simulate, with_all_features
from ktbench.spec.errors import RequestError
from tests.sim.testbed import cell_on, testbed

FASTER = {"changes": {"read_gb_per_s": 614}, "sources": {"read_gb_per_s": "twice the channels"}}


def written(folder: Path, content: Any) -> Path:
    path = folder / "prices.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def listed(*entries: Any) -> dict[str, Any]:
    return {"currency": "EUR", "machines": list(entries)}


def test_entries_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    prices = read_prices(written(tmp_path, listed({"machine": "a", "price": 2}, {"machine": "b", "price": 1.5})))
    assert prices.currency == "EUR"
    assert [(one.machine, one.price) for one in prices.machines] == [("a", 2.0), ("b", 1.5)]


def test_an_entry_is_called_by_its_name_its_changes_or_its_machine() -> None:
    assert PriceEntry(machine="a", price=1).title == "a"
    assert PriceEntry(machine="a", price=1, **FASTER).title == "a with read_gb_per_s=614"
    assert PriceEntry(machine="a", price=1, name="the big one", **FASTER).title == "the big one"


def test_changes_replace_constants_and_their_sources_alone() -> None:
    machine = testbed()
    entry = PriceEntry(
        machine="testbed",
        price=1,
        changes=FASTER["changes"] | {"cores": 64, "gpu": "RTX 5090"},
        sources=FASTER["sources"] | {"cores": "data sheet"},
    )
    changed = entry.changed(machine)
    assert (changed.read_gb_per_s, changed.cores, changed.gpu, changed.name) == (614.0, 64, "RTX 5090", entry.title)
    assert changed.sources == machine.sources | entry.sources
    same = {"read_gb_per_s": 220.0, "cores": 36, "gpu": "RTX 4080", "name": "testbed", "sources": machine.sources}
    assert replace(changed, **same) == machine


def test_files_of_machines_lie_beside_the_list(tmp_path: Path) -> None:
    entries = ({"machine": "mine/box.yaml", "price": 1}, {"machine": "paper_4080", "price": 1})
    prices = read_prices(written(tmp_path, listed(*entries)))
    assert [prices.machine(one) for one in prices.machines] == [str(tmp_path / "mine/box.yaml"), "paper_4080"]


GOOD = {"machine": "a", "price": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "must be a mapping of currency, machines"),
        ("- 1", "must be a mapping of currency, machines"),
        ("a: 2026-13-77", "a: unknown key"),
        ("a: [", "is not YAML"),
        ({"machines": [GOOD]}, "currency: is missing"),
        ({"currency": "EUR"}, "machines: is missing"),
        ({"currency": 5, "machines": [GOOD]}, "currency=5: must be a text"),
        ({"currency": "EUR", "machines": []}, "machines: must be a list of at least one entry"),
        (listed(GOOD) | {"machine": "a"}, "machine: unknown key, did you mean machines?"),
        (listed(GOOD, 3), "entry 2: must be a mapping of machine, price"),
        (listed(GOOD, {"price": 1}), "entry 2: machine: is missing"),
        (listed(GOOD, {"machine": "a"}), "entry 2: price: is missing"),
        (listed({"machine": "a", "prize": 1}), "entry 1: prize: unknown key, did you mean price?"),
        (listed({"machine": 7, "price": 1}), "entry 1: machine: expected str, got int"),
        (listed({"machine": "a", "price": "1,000"}), "entry 1: price: expected float, got str"),
        (listed({"machine": "a", "price": True}), "entry 1: price: expected float, got bool"),
        (listed({"machine": "a", "price": -1}), "entry 1: price=-1.0: must be a number above 0"),
        (listed({"machine": "a", "price": float("nan")}), "entry 1: price=nan: must be a number above 0"),
        (listed(GOOD | FASTER | {"sources": {}}), "entry 1: changes.read_gb_per_s: has no source; say in sources."),
        (listed(GOOD | {"changes": {"read": 1}}), "entry 1: changes.read: no such constant"),
        (listed(GOOD | {"sources": {"cores": "x"}}), "entry 1: sources.cores: cores is not among the changes"),
        (listed(GOOD | {"changes": [1]}), "entry 1: changes: expected object, got array"),
    ],
)
def test_a_bad_list_is_refused_in_one_line_with_file_entry_and_field(tmp_path: Path, content: Any, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError) as refused:
        read_prices(path)
    assert str(refused.value).startswith(f"{path}: {says}")
    assert "\n" not in str(refused.value)


def test_a_list_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: No such file"):
        read_prices(tmp_path / "none.yaml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=40) | st.text("currency: [EUR]\nmachines-&*!<>{}'\"", max_size=60).map(str.encode))
def test_no_file_ends_in_anything_but_a_list_or_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prices.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:
        read_prices(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"read_gb_per_s": -3}, "changes: machine.read_gb_per_s=-3.0: must be above 0"),
        ({"cores": 1.5}, "changes: cores: expected int, got float"),
        ({"gpu_gb_per_s": "fast"}, "changes: gpu_gb_per_s: expected float | null, got str"),
    ],
)
def test_a_change_that_no_machine_can_have_is_refused(changes: dict[str, Any], says: str) -> None:
    entry = PriceEntry(machine="a", price=1, changes=changes, sources=dict.fromkeys(changes, "here"))
    with pytest.raises(ValueError) as refused:
        entry.changed(testbed())
    assert str(refused.value).startswith(says)


def label(precision: str = "bf16", **machine: Any) -> str:
    return with_all_features(replace(cell_on(testbed(**machine)), precision=precision)).label  # type: ignore[arg-type]


def test_a_cell_gets_every_feature_that_its_machine_and_precision_have() -> None:
    assert label() == "+v+m+d+n+c"
    assert label(domains=1) == "+v+m+d+c"
    assert label(amx_tflops=None, amx_int8_tops=None) == "+v+d+n+c"
    assert label("q4_0") == "+v+m+d+n+c"
    assert label(gpu=None) == "+v+m+d+n+l"
    assert label(gpu=None, vector="avx2", amx_tflops=None, amx_int8_tops=None) == "+a+d+n+l"
    assert label(vector="avx2", amx_tflops=None, amx_int8_tops=None) == "+a+d+n+c"


def test_deferral_stays_as_asked() -> None:
    assert with_all_features(cell_on(testbed(), deferral=3)).label == "+v+m+d+n+c deferral=3"


def test_an_offer_has_the_speed_of_the_simulation_and_its_price() -> None:
    spec = with_all_features(cell_on(testbed(), phase="prefill", prompt=512))
    made = offer(spec, "box", 1000.0)
    assert made.tokens_per_s == pytest.approx(512 / simulate(spec).step_s)
    assert made.price_per_speed == pytest.approx(1000 * simulate(spec).step_s / 512)
    assert (made.features, made.why) == ("+v+m+d+n+c", "")
    assert made.bottleneck is not None


def test_an_offer_that_cannot_run_it_has_a_reason_and_no_number() -> None:
    made = offer(cell_on(testbed()), "box", 1000.0, "too small")
    assert (made.tokens_per_s, made.price_per_speed, made.bottleneck, made.why) == (None, None, None, "too small")


def test_what_the_simulation_refuses_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RequestError("no such trace")

    monkeypatch.setattr("ktbench.sim.advising.prices.step_s", refuse)
    assert offer(cell_on(testbed()), "box", 1000.0).why == "no such trace"


def made(title: str, price: float, speed: float | None) -> Offer:
    return Offer(title=title, price=price, features="+v", tokens_per_s=speed)


OFFERS = [
    made("slow", 1, 5.0),
    made("dear", 9, 30.0),
    made("good", 4, 20.0),
    made("better", 4, 25.0),
    made("no", 2, None),
]


def test_the_cheapest_that_reaches_the_target_and_of_equals_the_fastest() -> None:
    assert cheapest(OFFERS, 5.0) is OFFERS[0]
    assert cheapest(OFFERS, 20.0) is OFFERS[3]
    assert cheapest(OFFERS, 26.0) is OFFERS[1]
    assert cheapest(OFFERS, 31.0) is None


def test_the_closest_is_the_fastest_of_those_that_have_a_speed() -> None:
    assert closest(OFFERS) is OFFERS[1]
    assert closest([OFFERS[4]]) is None
