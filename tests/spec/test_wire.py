"""Logs keep the names that they were written with: recorded runs stay readable, and specs keep their ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.resources import data_folder
from ktbench.results import read_run
from ktbench.spec.engine import ServingSpec
from ktbench.spec.record import Evidence
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_wire, spec_id, to_wire
from tests.tiny import tiny_spec

TRAINING = {"adapters": "both", "lora_rank": 8, "recompute": True}
RECORDED = sorted(path.parent for path in (data_folder("reports") / "recorded").rglob("log.jsonl"))


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, "72658a513547"),
        ({"avx512": True, "dynamic": True}, "93afdfa78b9a"),
        ({"avx512": True, "packed_dense": True, "precision": "int8", "deferral": 1}, "9f5b8736208e"),
        ({"phase": "train", "workload": TRAINING}, "5023d4738724"),
    ],
)
def test_ids_are_those_of_earlier_versions(changes: dict[str, object], known: str) -> None:
    assert spec_id(tiny_spec(**changes)) == known  # type: ignore[arg-type]


def test_the_threshold_of_a_hybrid_is_of_the_identity_where_it_matters() -> None:
    """Logs of earlier versions hold 5 in every cell."""
    for engine, same in (({"avx512": True}, True), ({"amx": True}, True), ({"avx512": True, "amx": True}, False)):
        auto, five = tiny_spec(**engine), tiny_spec(**engine, amx_min_tokens=5)
        assert (spec_id(auto) == spec_id(five)) is same
        assert from_wire(to_wire(auto), RunSpec) == auto and from_wire(to_wire(five), RunSpec) == five


def test_a_hand_over_is_of_the_identity_where_it_is_another_one() -> None:
    earlier = to_wire(tiny_spec(avx512=True, device="cuda"))
    del earlier["engine"]["handover"]
    assert from_wire(earlier, RunSpec) == tiny_spec(avx512=True, device="cuda")
    named, flags = (tiny_spec(avx512=True, device="cuda", handover=name) for name in ("host_function", "flags"))
    assert spec_id(named) == spec_id(tiny_spec(avx512=True, device="cuda")) != spec_id(flags)


def test_examples_are_of_the_identity_where_they_are_learned() -> None:
    plain = tiny_spec(phase="train", workload=TRAINING)
    earlier = to_wire(plain)
    del earlier["workload"]["examples"]
    assert from_wire(earlier, RunSpec) == plain
    model = replace(plain.model, path="folder")
    learned = [replace(plain, model=model, workload=replace(plain.workload, examples=one)) for one in "ab"]
    assert len({spec_id(one) for one in (replace(plain, model=model), *learned)}) == 3
    assert [from_wire(to_wire(one), RunSpec) for one in learned] == learned


def test_serving_is_of_the_identity_where_it_is_set() -> None:
    plain = tiny_spec()
    earlier = to_wire(plain)
    for name in ("b", "k", "p", "static_batch", "serving"):
        del earlier["engine"][name]
    assert from_wire(earlier, RunSpec) == plain
    served = [tiny_spec(batching=True), tiny_spec(static_batch=2), tiny_spec(serving=ServingSpec(chunk_tokens=64))]
    assert len({spec_id(one) for one in (plain, *served)}) == 4
    assert [from_wire(to_wire(one), RunSpec) for one in served] == served


def test_a_spec_comes_back_from_the_names_of_logs() -> None:
    spec = tiny_spec(avx512=True, amx=True, dynamic=True, deferral=1)
    wire = to_wire(spec)
    assert {wire["engine"][letter] for letter in "vmd"} == {True} and "avx512" not in wire["engine"]
    assert from_wire(wire, RunSpec) == spec


def test_evidence_names_features_as_logs_do() -> None:
    seen = Evidence(feature="avx512", asked=True, counter="avx512_calls", seen=3)
    assert to_wire(seen)["feature"] == "v"
    assert from_wire(to_wire(seen), Evidence) == seen


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_runs_are_read_whole(folder: Path) -> None:
    run = read_run(folder)
    assert run.records and not run.damage
