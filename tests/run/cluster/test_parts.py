"""Shards that something else starts, `sweep shard=I/N`, and `merge`, which joins them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ktbench.cli import main
from ktbench.results import Log, read_run
from ktbench.run.cluster.shards import NODES
from ktbench.spec.wire import to_plain
from tests.sim.testbed import testbed

WORDS = (
    "sweep", "model=tiny", "workload.prompt=8", "workload.steps=2", "sweep.arms=[base,+v]", "workload.batch=1,2,3",
    "machine=box.yaml",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "box", "title": "A box"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ktbench.cli.show.write_report", lambda run, documents: [])
    monkeypatch.setattr("ktbench.sim.records._MOST_WITH_SENSITIVITY", 0)
    return tmp_path


def test_shards_merge_to_the_run_of_one_machine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "run_name=alone"]) == 0
    told = capsys.readouterr().out
    for shard in ("2/3", "1/3"):
        assert main([*WORDS, "run_name=parts", f"shard={shard}"]) == 0
    capsys.readouterr()
    assert main(["merge", "parts"]) == 4  # cells of the third are missing
    assert "2 of 6 cells have no record" in capsys.readouterr().err
    assert main([*WORDS, "run_name=parts", "shard=3/3"]) == main([*WORDS, "run_name=parts", "shard=1/3"]) == 0
    capsys.readouterr()
    assert main(["merge", "parts"]) == main(["merge", "parts"]) == 0
    assert capsys.readouterr().out.split("Ids:")[0] == told.split("Ids:")[0]
    alone, parts = (read_run(home / "runs" / name) for name in ("alone", "parts"))
    assert parts.header.cells == alone.header.cells
    assert {r.cell: r.samples_s for r in parts.records} == {r.cell: r.samples_s for r in alone.records}
    assert len(parts.records) == len(alone.records)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shard=1/3"], "run_name=NAME"),
        (["shard=4/3", "run_name=x"], "write I/N"),
        (["shard=0/3", "run_name=x"], "write I/N"),
        (["shard=half", "run_name=x"], "write I/N"),
        (["shard=1/4", "run_name=x"], "has 3 points"),
        (["shard=1/2", "run_name=parts"], "another cut"),
        (["shard=1/3", "run_name=parts", "workload.routing=zipf"], "planned other cells"),
    ],
)
def test_a_shard_that_there_is_not_is_refused_in_one_line(
    home: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "run_name=parts", "shard=3/3"]) == 0
    capsys.readouterr()
    assert main([*WORDS, *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert not (home / "runs/x").exists()


def test_a_shard_that_is_being_measured_is_not_merged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "run_name=parts", "shard=1/3"]) == 0
    log = Log(home / "runs/parts" / NODES / "001-of-003")
    try:
        assert main(["merge", "parts"]) == 2
    finally:
        log.close()
    assert "is still being measured" in capsys.readouterr().err
    assert main([*WORDS, "run_name=alone"]) == 0
    assert main(["merge", "alone"]) == 2 == main(["merge"])
