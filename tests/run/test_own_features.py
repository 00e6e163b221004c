"""The feature that docs/howto/feature.md builds, from its file to speed, accuracy, evidence and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.gen.repository import DOCS
from ktbench.cli import main
from ktbench.results import Run, read_run
from ktbench.run.request import plan_request, read_request
from ktbench.run.serving.opening import serving_spec
from ktbench.spec.errors import RequestError
from ktbench.spec.features import BY_NAME
from ktbench.spec.record import Outcome
from tests.engine.engines import VECTOR, needs_vector

OWN = ("engine.own_file=low_gate.py",)
ON = VECTOR.mark
ARMS = (f"sweep.arms=[{ON},'{ON} low_gate=0.5','{ON} low_gate=1e-9']", f"sweep.baseline={ON}", "sweep.control=false")
SMALL = ("model=tiny", "workload.prompt=8", "workload.steps=3", "measure.min_rounds=1", "measure.max_rounds=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the file that the how-to shows; the table of features is as it was afterwards."""
    _, _, rest = (DOCS / "howto" / "feature.md").read_text(encoding="utf-8").partition("```python\n")
    code = rest.partition("```")[0]
    assert len(code.splitlines()) <= 60
    (tmp_path / "low_gate.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    BY_NAME.pop("low_gate", None)


def measured(verb: str, *words: str) -> Run:
    assert main((verb, *OWN, *words, "run_name=own")) in (0, 4)
    return read_run(Path("runs/own"))


@needs_vector()
@pytest.mark.usefixtures("loaded_children")
def test_a_sweep_shows_its_speed_evidence_and_agreement(folder: Path) -> None:
    run = measured("sweep", *ARMS, *SMALL)
    base, on, idle = run.records
    assert [one.outcome for one in run.records] == [Outcome.OK] * 3, [one.why for one in run.records]
    seen = [{one.feature: one.seen for one in record.evidence}["low_gate"] for record in (on, idle)]
    assert seen == [3, 0]  # the first of two layers defers the lower of two experts in each step
    assert any("nothing to do on this data" in note for note in idle.notes)
    assert base.agreement is not None and on.agreement is not None
    assert on.agreement.against == base.label
    assert on.agreement.kl_nats > 0
    table = (folder / "runs/own/report/table.md").read_text()
    del BY_NAME["low_gate"]  # as where nobody knows it
    assert main(("report", "own")) == 0
    assert (folder / "runs/own/report/table.md").read_text() == table
    assert "low_gate_experts" in table and "engine.own={low_gate:0.5}" in table


@needs_vector()
@pytest.mark.usefixtures("loaded_children")
def test_an_evaluation_shows_its_accuracy() -> None:
    arms = (f"sweep.arms=[{ON},'{ON} low_gate=1.5']", f"sweep.baseline={ON}", "sweep.control=false")
    run = measured("eval", "model=nano", "+suite=nano", "limit=2", "tasks=[addition]", *arms)
    assert [one.outcome for one in run.task_results] == [Outcome.OK] * 2, [one.why for one in run.task_results]
    counts = [{one.feature: one.seen for one in end.evidence}.get("low_gate") for end in run.task_results]
    assert not counts[0]
    assert counts[1]
    assert {one.metric for one in run.sample_results} >= {"score", "kl_nats"}


def test_it_stands_beside_the_best_features() -> None:
    (part,) = read_request([*SMALL, *OWN, "engine.best=true", "engine.own.low_gate=0.3"]).parts
    assert part.spec.engine.fused
    assert part.spec.engine.own == {"low_gate": 0.3}


@needs_vector()
def test_a_server_takes_it() -> None:
    words = ("model=nano", f"engine.{VECTOR.name}=true", "engine.own.low_gate=0.3", *OWN)
    spec, why = serving_spec("serve", words)
    assert (spec.engine.own, why) == ({"low_gate": 0.3}, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("engine.own.low_gate=0.1",), r"engine\.own\.low_gate: no such feature"),
        ((*OWN, "engine.own.lowgate=0.1"), r"engine\.own\.lowgate: no such feature; allowed are low_gate"),
        ((*OWN, "engine.own.low_gate=yes please"), r"engine\.own\.low_gate="),
        (("engine.own_file=gone.py",), r"engine\.own_file=gone\.py: No such file"),
        (("engine.own_file=low_gate.py,b.py",), r"engine\.own_file: takes one file"),
        ((*OWN, "sweep.arms=[low_gate]"), "low_gate"),
        (("+ablation=names.yaml",), r"engine\.own_file=low_gate\.py: stands in a file"),
        (("+ablation=varies.yaml",), r"engine\.own_file=low_gate\.py: stands in a file"),
    ],
)
def test_what_is_no_feature_is_refused_before_anything_loads(words: tuple[str, ...], why: str, folder: Path) -> None:
    arms = "sweep: {name: names, title: t, arms: [base]"
    (folder / "names.yaml").write_text(f"engine: {{own_file: low_gate.py}}\n{arms}}}\n")
    (folder / "varies.yaml").write_text(f"{arms}, axes: {{x: [{{engine.own_file: low_gate.py}}]}}}}\n")
    with pytest.raises(RequestError, match=why):
        read_request(("model=tiny", *words))
    assert "low_gate" not in BY_NAME or "low_gate.py" in "".join(words)


def test_a_list_of_values_makes_an_arm_of_each() -> None:
    (part,) = read_request((*OWN, "model=tiny", "engine.own.low_gate=0.1,0.2")).parts
    assert part.sweep.arms == ("low_gate=0.1", "low_gate=0.2")


def test_described_machines_refuse_it_by_name() -> None:
    request = read_request(
        (*OWN, "model=mixtral_8x7b", "machine=paper_a100", "engine.avx512=true", "engine.own.low_gate=0.1")
    )
    planned = plan_request(request)
    assert list(planned.unsupported.values()) == [
        "engine.own.low_gate=0.1: is not simulated, leave it out or set machine=here"
    ]
