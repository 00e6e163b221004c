"""`model.packed` in a request: what it says of a cell, and what is refused before anything loads."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.engine.load import load_engine
from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import WeightPlan
from ktbench.results.command import command_of
from ktbench.run.request import one_cell_request, plan_request
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import MachineMemory, estimate_memory
from ktbench.spec.support import rules_broken
from tests.engine.engines import FUSED, VECTOR, needs_vector
from tests.tiny import tiny_spec

pytestmark = needs_vector()
WORDS = ["model=tiny", "workload.prompt=8", f"{VECTOR.key}=true"]


def planned(*words: str) -> RunSpec:
    request = one_cell_request("run", [*WORDS, *words])
    plan_request(request)
    return request.parts[0].spec


def packed(spec: RunSpec) -> None:
    host = HostRole(cores=1)
    load_engine(spec.model, WeightPlan.of([spec], host), host)


def test_a_folder_of_the_same_weights_is_taken_and_another_refused(tmp_path: Path) -> None:
    where = f"model.packed={tmp_path}"
    packed(planned(where, "precision=int8"))
    planned(where, "precision=int8")
    planned(where, "precision=bf16")
    for other in ("model.seed=1", "model.layers=1"):
        with pytest.raises(RequestError, match=r"experts-int8 differs in its") as refused:
            planned(where, "precision=int8", other)
        assert "\n" not in str(refused.value)
    planned(where, "precision=int8", "model.seed=1", f"{VECTOR.key}=false", "precision=bf16")


def test_experts_over_domains_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="split over domains"):
        planned(f"model.packed={tmp_path}", "engine.domains=2")


def test_domains_of_memory_are_a_reason_of_their_cell() -> None:
    reasons = [str(reason) for reason in rules_broken(tiny_spec(**FUSED, numa=True, domains=2))]
    assert not any("model.packed" in reason for reason in reasons)
    spec = tiny_spec(**FUSED, numa=True, domains=2)
    reasons = [str(reason) for reason in rules_broken(replace(spec, model=replace(spec.model, packed="kept")))]
    assert any("model.packed" in reason for reason in reasons)


def test_a_disk_that_is_too_small_is_refused_unless_all_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(planned(where := f"model.packed={tmp_path / 'kept'}"))
    full = namedtuple("Usage", ("total", "used", "free"))(100, 100, 0)
    monkeypatch.setattr("ktbench.engine.loading.packed_folder.disk_usage", lambda _: full)
    planned(where)
    with pytest.raises(RequestError, match="packed weights take"):
        planned(f"model.packed={tmp_path / 'other'}")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="no folder that can be written"):
        planned(f"model.packed={tmp_path / 'file' / 'kept'}")


@pytest.mark.parametrize(
    "words", [["model.packed=x", "workload=layer"], ["model.packed=3"], ["model.packed=''"], ["model.packed=[a]"]]
)
def test_bad_values_are_refused_in_one_line(words: list[str]) -> None:
    with pytest.raises(RequestError, match=r"model\.packed") as refused:
        one_cell_request("run", ["model=tiny", *words])
    assert "\n" not in str(refused.value)


def test_the_command_of_a_row_names_the_folder(tmp_path: Path) -> None:
    assert f"model.packed={tmp_path}" in command_of(planned(f"model.packed={tmp_path}"))
    assert "model.packed" not in command_of(planned())


def test_saving_takes_a_layer_more(tmp_path: Path) -> None:
    one, kept = (
        estimate_memory([Cell(label="+v", spec=spec, spec_id="")], MachineMemory())
        for spec in (planned(), planned(f"model.packed={tmp_path}"))
    )
    assert kept.packed * 2 == one.packed * 3
    assert kept.total - one.total == kept.packed - one.packed
