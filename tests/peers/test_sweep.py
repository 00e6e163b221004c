"""A whole sweep of several systems on a tiny model, from the command line to the table."""

from __future__ import annotations

import json
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.spec.peers import PEERS, Peer

WORDS = (
    "model=tiny",
    "system=ktbench,transformers,llama.cpp",
    "peer.tune_s=0.2",
    "workload.steps=3",
    "measure.min_rounds=2",
    "measure.max_rounds=2",
    "run_name=seen",
)


@pytest.mark.peers
def test_systems_are_measured_together_and_their_answers_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: nox -s peers installs it")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *WORDS]) == 0
    table = json.loads((tmp_path / "runs/seen/report/table.json").read_text())
    rows = {row["label"]: row for row in table["rows"] if row["role"] == "arm"}
    assert len(rows) == 3
    against = {label: (row["agreement"] or {}).get("against") for label, row in rows.items()}
    assert sorted(against.values()) == ["", "base", "base"]
    assert not any(row["unproven"] for row in rows.values())
    assert len(list((tmp_path / "runs/gguf").glob("*.gguf"))) == 1


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_row_names_a_module_that_opens_it(peer: Peer) -> None:
    if set(peer.phases) != {"serve"}:
        assert list(signature(import_module(peer.opener).open_peer).parameters) == ["specs", "host"]
    if "serve" in peer.phases:
        assert list(signature(import_module(peer.serves).open_serving).parameters) == ["specs", "host"]
