"""The calls that llama.cpp gets: the ids of our engine's script, each at its position of its sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.routing import prompt_ids
from ktbench.peers.llama.script import Script, TokenLayout, write_script
from ktbench.spec.run_spec import WorkloadSpec

VOCAB = 97
SIZES = {"prompt": st.integers(1, 40), "batch": st.integers(1, 4), "steps": st.integers(1, 4)}
CHUNKS = st.none() | st.integers(1, 45)


def grid(calls: tuple[TokenLayout, ...], batch: int) -> dict[tuple[int, int], int]:
    """Token by sequence and position; none is given twice."""
    found: dict[tuple[int, int], int] = {}
    for call in calls:
        for token, position, sequence in zip(call.tokens, call.positions, call.sequences, strict=True):
            assert (int(sequence), int(position)) not in found
            assert sequence < batch
            found[int(sequence), int(position)] = int(token)
    return found


def cells_of(ids: np.ndarray, first: int = 0) -> dict[tuple[int, int], int]:
    return {(row, first + column): int(ids[row, column]) for row, column in np.ndindex(*ids.shape)}


def wants_last_only(calls: tuple[TokenLayout, ...], batch: int) -> bool:
    """Whether logits are requested at the last position of each sequence, in their order, and nowhere else."""
    last = max(int(call.positions.max()) for call in calls)
    marked = [(int(s), int(p)) for c in calls for s, p, w in zip(c.sequences, c.positions, c.wanted, strict=True) if w]
    return marked == [(sequence, last) for sequence in range(batch)]


@given(**SIZES, chunk=CHUNKS)
def test_decode_has_the_prompt_then_one_token_of_each_sequence(
    prompt: int, batch: int, steps: int, chunk: int | None
) -> None:
    work = WorkloadSpec(phase="decode", prompt=prompt, batch=batch, steps=steps, seed=5, chunk=chunk)
    script = write_script(work, VOCAB)
    ids = prompt_ids(VOCAB, batch, prompt + steps, 5)
    assert grid(script.prompt, batch) == cells_of(ids[:, :prompt])
    assert len(script.steps) == steps
    for at, calls in enumerate(script.steps, start=prompt):
        assert len(calls) == 1
        assert grid(calls, batch) == cells_of(ids[:, at : at + 1], at)
        assert wants_last_only(calls, batch)
    assert script.step_tokens == batch
    assert_chunks(script, script.prompt)


@given(**SIZES, chunk=CHUNKS)
def test_prefill_has_new_prompts_in_every_step(prompt: int, batch: int, steps: int, chunk: int | None) -> None:
    work = WorkloadSpec(phase="prefill", prompt=prompt, batch=batch, steps=steps, seed=3, chunk=chunk)
    script = write_script(work, VOCAB)
    ids = prompt_ids(VOCAB, batch, prompt * steps, 3)
    assert not script.prompt
    assert len(script.steps) == steps
    for number, calls in enumerate(script.steps):
        assert grid(calls, batch) == cells_of(ids[:, number * prompt : (number + 1) * prompt])
        assert wants_last_only(calls, batch)
        assert_chunks(script, calls)


def assert_chunks(script: Script, calls: tuple[TokenLayout, ...]) -> None:
    """Every call has at most `chunk` tokens of a sequence, and there are no more calls than that needs."""
    work = script.workload
    size = work.chunk or work.prompt
    assert len(calls) == -(-work.prompt // size)
    assert all(len(call) <= size * work.batch for call in calls)
    assert script.call_tokens == max(len(call) for one in (script.prompt, *script.steps) for call in one)


@pytest.mark.parametrize(
    ("phase", "prompt", "steps", "batch", "cells"),
    [
        ("decode", 256, 1, 1, 512),
        ("decode", 248, 8, 3, 768),
        ("prefill", 256, 9, 1, 256),
        ("prefill", 257, 1, 2, 1024),
    ],
)
def test_memory_has_room_for_all_sequences(phase: str, prompt: int, steps: int, batch: int, cells: int) -> None:
    work = WorkloadSpec(phase=phase, prompt=prompt, steps=steps, batch=batch)  # type: ignore[arg-type]
    assert write_script(work, VOCAB).cells == cells


def test_arrays_are_what_the_c_interface_takes() -> None:
    call = write_script(WorkloadSpec(phase="prefill", prompt=3, steps=1, batch=2), VOCAB).steps[0][0]
    assert [a.dtype for a in (call.tokens, call.positions, call.sequences, call.wanted)] == [np.int32] * 3 + [np.int8]
    assert all(a.flags.c_contiguous for a in (call.tokens, call.positions, call.sequences, call.wanted))
    assert call.sequences.tolist() == [0, 0, 0, 1, 1, 1]
    assert call.positions.tolist() == [0, 1, 2, 0, 1, 2]
