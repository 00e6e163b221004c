"""Logits held against those of another system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.run.agreement import SavedLogits, agreement, collect_logits, disagreement, divergence_nats, logits_file
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session
from ktbench.spec.record import Cell, Outcome
from tests.fake import FakeRoofs, FakeSystem
from tests.tiny import tiny_cell

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(6, 50)).astype(np.float32)
REFERENCE = SavedLogits(label="base", cell="abc", logits=LOGITS)


def torch_kl(p: np.ndarray, q: np.ndarray) -> float:
    log_p, log_q = (torch.from_numpy(x).double().log_softmax(-1) for x in (p, q))
    return float(torch.nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 20))
def test_divergence_is_that_of_pytorch(seed: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    p, q = (spread * random.normal(size=(3, 17)).astype(np.float32) for _ in range(2))
    assert divergence_nats(p, q) == pytest.approx(torch_kl(p, q), rel=1e-4, abs=1e-9)
    assert divergence_nats(p, p) == pytest.approx(0, abs=1e-12)


def test_what_is_not_finite_is_infinitely_far() -> None:
    broken = LOGITS.copy()
    broken[0, 0] = np.nan
    assert divergence_nats(LOGITS, broken) == float("inf")
    assert "not those of base" in disagreement(REFERENCE, agreement(REFERENCE, broken))


def test_roundings_agree_and_other_weights_do_not() -> None:
    near = agreement(REFERENCE, LOGITS + 0.01 * RANDOM.normal(size=LOGITS.shape).astype(np.float32))
    assert near.top1 == 1.0
    assert near.positions == 6
    assert near.kl_nats < 1e-3
    assert disagreement(REFERENCE, near) == ""
    other = agreement(REFERENCE, RANDOM.normal(size=LOGITS.shape).astype(np.float32))
    assert "its logits are not those of base: KL" in disagreement(REFERENCE, other)
    shifted = agreement(REFERENCE, np.roll(LOGITS, 1, axis=0))
    assert disagreement(REFERENCE, shifted)


def test_a_reference_that_says_nothing_proves_nothing() -> None:
    flat = SavedLogits(label="base", cell="abc", logits=np.zeros((2, 8), np.float32))
    assert disagreement(flat, agreement(flat, flat.logits))


def test_other_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"logits are \[5, 50\] .* those of base \[6, 50\]: not the same work"):
        agreement(REFERENCE, LOGITS[:5])


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "below" / "a.npz"
    assert SavedLogits.read(path) is None
    REFERENCE.save(path)
    read = SavedLogits.read(path)
    assert read is not None
    assert (read.label, read.logits.tolist()) == ("base", LOGITS.tolist())
    assert [file.name for file in path.parent.iterdir()] == ["a.npz"]
    path.write_bytes(path.read_bytes()[:100])
    assert SavedLogits.read(path) is None


def test_answers_are_those_of_every_step() -> None:
    seen = iter(LOGITS)
    found = collect_logits(lambda: None, lambda: next(seen)[None], 3)
    assert found.tolist() == LOGITS[:3].tolist()


class Speaking(FakeSystem):
    """Logits that depend on the step, as a model's do; `other weights` has others."""

    def logits(self) -> np.ndarray:
        seed = 99 if self.script == "other weights" else 0
        return np.random.default_rng((self.at, seed)).normal(size=(1, 32)).astype(np.float32)


def session(**scripts: str) -> Session:
    return Session(
        system=Speaking(scripts, step_s=0.0),
        roofs=FakeRoofs(),
        ids=RecordIds(code_id="c", env_id="e", worker_session="s"),
    )


def test_the_first_whose_experts_are_seen_becomes_what_others_are_held_against(tmp_path: Path) -> None:
    file = tmp_path / "logits.npz"
    black_box = tiny_cell("llama.cpp", system="llama.cpp")
    assert session().trial(black_box, 0, file).agreement is None
    first = session().trial(tiny_cell("base"), 0, file)
    second = session().trial(tiny_cell("+v", avx512=True), 0, file)
    third = session().trial(black_box, 1, file)
    assert first.agreement is not None
    assert first.agreement.against == ""
    for record in (second, third):
        assert record.agreement is not None
        assert (record.agreement.against, record.agreement.top1, record.agreement.positions) == ("base", 1.0, 3)


def test_a_cell_that_means_to_answer_otherwise_is_nobodys_reference_and_never_wrong(tmp_path: Path) -> None:
    file = tmp_path / "logits.npz"
    deferring = tiny_cell("+v deferral=1", avx512=True, deferral=1)
    assert session().trial(deferring, 0, file).agreement is None
    session().trial(tiny_cell("base"), 0, file)
    record = session(**{"+v deferral=1": "other weights"}).trial(deferring, 1, file)
    assert record.outcome is Outcome.OK
    assert record.agreement is not None
    assert record.agreement.against == "base"
    assert record.agreement.top1 < 1


def test_a_cell_of_the_same_name_is_not_the_reference(tmp_path: Path) -> None:
    file = tmp_path / "logits.npz"
    cells = [tiny_cell("+v", avx512=True, threads=threads) for threads in (1, 2)]
    found = [session().trial(cell, 0, file).agreement for cell in cells]
    assert [agreed and agreed.against for agreed in found] == ["", "+v"]


def test_other_weights_are_wrong_and_keep_no_sample(tmp_path: Path) -> None:
    file = tmp_path / "logits.npz"
    session().trial(tiny_cell("base"), 0, file)
    record = session(**{"llama.cpp": "other weights"}).trial(tiny_cell("llama.cpp", system="llama.cpp"), 0, file)
    assert (record.outcome, record.samples_s) == (Outcome.WRONG, ())
    assert "its logits are not those of base" in record.why


def test_without_a_file_nothing_is_compared() -> None:
    assert session().trial(tiny_cell("base"), 0).agreement is None


_OURS, _PEER = tiny_cell("base"), tiny_cell("llama.cpp", system="llama.cpp")


def file_of(cell: Cell, *cells: Cell, code: str = "code") -> Path | None:
    return logits_file(Path("run"), cell, (cell, *cells), code)


def test_systems_with_the_same_weights_and_work_share_one() -> None:
    assert file_of(_OURS, _PEER) == file_of(_PEER, _OURS)
    assert str(file_of(_OURS, _PEER)).startswith("run/logits/")


def test_one_system_alone_and_a_layer_have_none() -> None:
    assert file_of(_OURS, tiny_cell("+v", avx512=True)) is None
    layers = [tiny_cell(name, system=name, phase="layer") for name in ("transformers", "kt-kernel")]
    assert file_of(*layers) is None


def test_other_weights_work_or_code_have_others() -> None:
    other = {"precision": "q8_0"}, {"workload": {"prompt": 9}}, {"device_precision": "q8_0"}
    pairs = [(tiny_cell("+v", avx512=True, **one), tiny_cell("llama.cpp", system="llama.cpp", **one)) for one in other]
    files = [file_of(_OURS, _PEER), file_of(_OURS, _PEER, code="other"), *(file_of(*pair) for pair in pairs)]
    assert None not in files
    assert len(set(files)) == 5
