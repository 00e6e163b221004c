"""The file that logits are held against."""

from __future__ import annotations

from pathlib import Path

from ktbench.run.agreement import logits_file
from ktbench.spec.record import Cell
from tests.tiny import tiny_cell

OURS, PEER = tiny_cell("base"), tiny_cell("llama.cpp", system="llama.cpp")


def file(cell: Cell, *cells: Cell, code: str = "code") -> Path | None:
    return logits_file(Path("run"), cell, (cell, *cells), code)


def test_systems_with_the_same_weights_and_work_share_one() -> None:
    assert file(OURS, PEER) == file(PEER, OURS)
    assert str(file(OURS, PEER)).startswith("run/logits/")


def test_one_system_alone_and_a_layer_have_none() -> None:
    assert file(OURS, tiny_cell("+v", avx512=True)) is None
    layers = [tiny_cell(name, system=name, phase="layer") for name in ("transformers", "kt-kernel")]
    assert file(*layers) is None


def test_other_weights_work_or_code_have_others() -> None:
    other = {"precision": "q8_0"}, {"workload": {"prompt": 9}}, {"device_precision": "q8_0"}
    pairs = [(tiny_cell("+v", avx512=True, **one), tiny_cell("llama.cpp", system="llama.cpp", **one)) for one in other]
    files = [file(OURS, PEER), file(OURS, PEER, code="other"), *(file(*pair) for pair in pairs)]
    assert None not in files
    assert len(set(files)) == 5
