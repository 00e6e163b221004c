"""`plan what_if=`: the table, the answer, and every refusal in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ktbench.cli import main
from ktbench.spec.wire import to_plain
from tests.sim.testbed import testbed

ROOT = Path(__file__).parents[2]
# A slice whose routed experts take 2.3 GiB in bf16.
CELL = ("model=qwen3_30b_a3b", "model.layers=2", "workload.prompt=64")
FASTER = {"name": "faster", "changes": {"read_gb_per_s": 600}, "sources": {"read_gb_per_s": "made up"}}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Three offers of a machine in a file beside the list, the dearest first."""
    small = testbed(memory_gib=0.25, domains=1)
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "box"}))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(to_plain(small) | {"name": "small"}))
    box: dict[str, Any] = {"machine": "box.yaml"}
    entries = [box | FASTER | {"price": 30000}, box | {"price": 20000}, {"machine": "small.yaml", "price": 1000}]
    return written(tmp_path, entries)


def written(folder: Path, entries: Any) -> Path:
    path = folder / "prices.yaml"
    path.write_text(yaml.safe_dump({"currency": "EUR", "machines": entries}))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *CELL, *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *CELL, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def speeds(text: str) -> dict[str, float]:
    """Tokens/s in the table by machine."""
    return {name: float(speed) for name, speed in re.findall(r"^(\S+) +[\d,]+ +([\d.]+) ", text, re.MULTILINE)}


def test_the_table_is_sorted_by_price_and_says_that_it_is_simulated(
    prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, f"what_if={prices}", "what_if.target=1").splitlines()
    assert lines[0].endswith("batch 1, bf16; all speeds are simulated")
    assert lines[2].split()[:4] == ["machine", "EUR", "tokens/s", "(simulated)"]
    assert [line.split()[0] for line in lines[3:6]] == ["small.yaml", "box.yaml", "faster"]
    assert "cannot run it: " in lines[3] and "weights take " in lines[3]


def test_the_cheapest_that_reaches_the_target_is_the_answer(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = speeds(said(capsys, f"what_if={prices}", "what_if.target=1"))
    assert set(found) == {"box.yaml", "faster"}
    assert found["faster"] > found["box.yaml"]
    for target, name, price in (
        (found["box.yaml"] * 0.99, "box.yaml", "20,000"),
        (found["faster"] * 0.99, "faster", "30,000"),
    ):
        answer = said(capsys, f"what_if={prices}", f"what_if.target={target}").splitlines()[-1]
        assert re.fullmatch(rf"The cheapest that reaches .* tokens/s is {name} for {price} EUR: .* simulated\.", answer)


def test_where_none_reaches_it_the_closest_is_named(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, f"what_if={prices}", "what_if.target=1e9")
    assert re.fullmatch(r"None reaches .*; faster comes closest: .* simulated\.", text.splitlines()[-1])
    assert [line.split()[-1] for line in text.splitlines()[4:6]] == ["no", "no"]


def test_where_none_can_run_it_that_is_the_answer(
    tmp_path: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = written(tmp_path, [{"machine": "small.yaml", "price": 1}])
    assert "none can run it" in said(capsys, f"what_if={prices}", "what_if.target=1").splitlines()[-1]


def test_speed_price_and_features_of_a_row(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, f"what_if={prices}", "what_if.target=1", "engine.deferral=2")
    row = next(line for line in text.splitlines() if line.startswith("box.yaml"))
    name, price, speed, each, features = re.split(r" {2,}", row)[:5]
    assert (name, price, features) == ("box.yaml", "20,000", "+v+m+d+n+c deferral=2")
    assert float(each.replace(",", "")) == pytest.approx(20000 / float(speed), rel=1e-2)


def test_prefill_counts_the_tokens_of_the_prompt(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decode = speeds(said(capsys, f"what_if={prices}", "what_if.target=1"))
    prefill = speeds(said(capsys, f"what_if={prices}", "what_if.target=1", "workload=prefill", "workload.prompt=512"))
    assert prefill["box.yaml"] > decode["box.yaml"]


def test_presets_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = written(tmp_path, [{"machine": "paper_4080", "price": 20000}])
    assert "paper_4080" in speeds(said(capsys, f"what_if={prices}", "what_if.target=1"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("what_if.target=20",), "what_if.target: needs a price list, what_if=PRICES.yaml"),
        (("what_if=LIST",), "what_if: needs what_if.target=N"),
        (("what_if=LIST", "what_if.target=fast"), "what_if.target=fast: must be a number"),
        (("what_if=LIST", "what_if.target=-1"), "what_if.target=-1: must be a number"),
        (("what_if=LIST", "what_if.target=nan"), "what_if.target=nan: must be a number"),
        (("what_if=LIST", "what_if.speed=1"), "what_if.speed: unknown key; allowed are what_if=PRICES.yaml and"),
        (("what_if=LIST", "what_if.target=1", "machine=paper_4080"), "machine=paper_4080: what_if takes its machines"),
        (("what_if=LIST", "what_if.target=1", "+ablation=decode"), "what_if: takes one cell"),
        (("what_if=LIST", "what_if.target=1", "system=llama.cpp"), "system=llama.cpp: what_if simulates ktbench"),
        (("what_if=LIST", "what_if.target=1", "inject=experts"), "inject=experts: the rule "),
        (("what_if=LIST", "what_if.target=1", "workload.prompt=0"), "workload.prompt=0: must be at least 1"),
        (
            ("what_if=LIST", "what_if.target=1", "workload=layer", "model.layers=null", "workload.prompt=1"),
            "workload.phase=layer: what_if",
        ),
        (("what_if=none.yaml", "what_if.target=1"), "none.yaml: No such file"),
    ],
)
def test_a_wrong_question_is_refused_in_one_line(
    prices: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    asked = [word.replace("LIST", str(prices)) for word in words]
    assert refused(capsys, *asked).startswith(f"ktbench: {says}")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"machine": "paper_4081"}, "machine=paper_4081: unknown, did you mean paper_4080?"),
        ({"machine": "gone.yaml"}, "machine="),
        ({"machine": "here"}, "machine=here: is not described"),
        ({"machine": "paper_4080", "prize": 1}, "prize: unknown key"),
        (
            {"machine": "paper_4080", "changes": {"cores": -1}, "sources": {"cores": "x"}},
            "changes: machine.cores=-1: must be above 0",
        ),
    ],
)
def test_a_bad_entry_is_refused_by_file_entry_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], says: str
) -> None:
    prices = written(tmp_path, [{"machine": "paper_a100", "price": 1}, {"price": 1} | entry])
    err = refused(capsys, f"what_if={prices}", "what_if.target=1")
    assert err.startswith(f"ktbench: {prices}: entry 2: {says}")


def test_the_example_in_the_docs_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        f"what_if={ROOT / 'conf/prices.example.yaml'}",
        "what_if.target=10",
        "model=deepseek_v3",
        "model.layers=null",
    )
    text = said(capsys, *words, "precision=int4_g32", "device_precision=int4_g32", "engine.deferral=auto")
    assert text.splitlines()[-1].startswith(("The cheapest that reaches 10", "None reaches 10"))


@pytest.mark.parametrize(("ablation", "cells"), [("what_if", 20), ("what_if_gpu", 10)])
def test_sweeps_over_constants_simulate_every_cell(
    capsys: pytest.CaptureFixture[str], ablation: str, cells: int
) -> None:
    assert main(["plan", f"+ablation={ablation}"]) == 0
    out = capsys.readouterr().out
    assert f"{cells} cells, in this process" in out
    assert "dropped" not in out
