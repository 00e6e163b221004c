"""Least work of a token, against a count by hand."""

from __future__ import annotations

import pytest

from ktbench.engine.gguf.header import TensorInfo
from ktbench.peers.llama.black_box import work_of
from ktbench.spec.run_spec import WorkloadSpec
from tests.tiny import tiny_spec

SHAPE = tiny_spec().model.shape  # 8 experts, top-2
VOCAB, HIDDEN, FFN = 256, 64, 32
DECODE = WorkloadSpec(phase="decode", prompt=8, steps=3)


def tensor(name: str, kind: str, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, kind=kind, shape=shape, offset=0)  # type: ignore[arg-type]


EMBEDDING = tensor("token_embd.weight", "Q8_0", VOCAB, HIDDEN)
HEAD = tensor("output.weight", "Q8_0", VOCAB, HIDDEN)
NORM = tensor("output_norm.weight", "F32", HIDDEN)
GATE = tensor("blk.0.ffn_gate_exps.weight", "Q4_0", 8, FFN, HIDDEN)
ROUTER = tensor("blk.0.ffn_gate_inp.weight", "F32", 8, HIDDEN)


def test_bytes_are_those_of_the_file_and_of_the_chosen_experts() -> None:
    work = work_of(DECODE, SHAPE, [EMBEDDING, HEAD, NORM, GATE, ROUTER])
    q8_row, q4_row = HIDDEN // 32 * 34, HIDDEN // 32 * 18
    assert work is not None
    assert work.weight_bytes == q8_row * (1 + VOCAB) + 4 * HIDDEN + 2 * FFN * q4_row + 4 * 8 * HIDDEN
    assert work.flops == 2 * HIDDEN * (VOCAB + 1 + 2 * FFN + 8)
    assert work.tokens == 1


def test_an_embedding_that_is_the_head_is_read_whole() -> None:
    tied = work_of(DECODE, SHAPE, [EMBEDDING, NORM])
    apart = work_of(DECODE, SHAPE, [HEAD, NORM])
    assert tied == apart


@pytest.mark.parametrize(
    "workload",
    [
        WorkloadSpec(phase="decode", prompt=8, steps=3, batch=2),
        WorkloadSpec(phase="prefill", prompt=8, steps=3),
    ],
)
def test_where_tokens_share_experts_nobody_knows(workload: WorkloadSpec) -> None:
    assert work_of(workload, SHAPE, [EMBEDDING, HEAD]) is None
