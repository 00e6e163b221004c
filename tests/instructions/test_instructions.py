"""Known numbers of instructions are counted exactly; a call that grew by 1 % is too large under the same compiler."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ktbench import _kernels
from tests.instructions import calls, reference
from tests.instructions.counter import missing, open_counter
from tests.instructions.reference import Counts, changes, not_judged

# Counts by hand beside every function.
KNOWN = r"""
.text
.globl loop, calls, indirect, copy, every_condition
loop:  # 1 + 2 n + 1
    mov %edi, %eax
1:  dec %eax
    jnz 1b
    ret
calls:  # 3 + 2
    call leaf
    nop
    ret
leaf:
    nop
    ret
indirect:  # 4 + 2
    lea leaf(%rip), %rax
    call *%rax
    nop
    ret
copy:  # 3: a repeated instruction is one
    mov %rdx, %rcx
    rep movsb
    ret
every_condition:  # 2 + 16 * 2 + 8 + 1; a bit for each condition that does not hold, and lea leaves the flags alone
    xor %eax, %eax
    cmp %esi, %edi
    .irp condition, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
    lea (%rax,%rax), %rax
    j\condition 1f
    lea 1(%rax), %rax
1:
    .endr
    ret
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if reason := missing():
        pytest.skip(reason)
    source = tmp_path_factory.mktemp("known") / "known.s"
    source.write_text(KNOWN + '\n.section .note.GNU-stack,"",@progbits\n')
    library = source.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(params=[False, True], ids=["breakpoints", "steps"])
def counting(request: pytest.FixtureRequest, known: ctypes.CDLL) -> Iterator[Any]:
    with open_counter(known._name, only_steps=request.param) as counter:
        yield counter


def test_known_numbers_of_instructions_are_counted(known: ctypes.CDLL, counting: Any) -> None:
    source, to = ctypes.create_string_buffer(b"abcdefg"), ctypes.create_string_buffer(8)
    assert counting.count(lambda: known.loop(1000)) == 2002
    assert counting.count(lambda: known.loop(1010)) == 2022
    assert counting.count(known.calls) == 5
    assert counting.count(known.indirect) == 6
    assert counting.count(lambda: known.copy(to, source, ctypes.c_size_t(8))) == 3
    assert to.raw == source.raw


@pytest.mark.parametrize("pair", [(1, 2), (2, 1), (2, 2), (-(2**31), 1), (2**31 - 1, -1), (0, -1), (-1, 0)])
def test_branches_are_taken_as_the_cpu_takes_them(known: ctypes.CDLL, counting: Any, pair: tuple[int, int]) -> None:
    """Of each pair of opposite conditions one holds, whatever is compared."""
    seen: list[int] = []
    assert counting.count(lambda: seen.append(known.every_condition(*pair))) == 2 + 16 * 2 + 8 + 1
    assert set(seen) == {known.every_condition(*pair)}


def test_outside_of_a_count_the_code_is_as_it_was(known: ctypes.CDLL) -> None:
    with open_counter(known._name) as counter:
        counter.count(lambda: known.loop(10))
        known.loop(10)
    known.loop(10)


def test_a_call_that_is_another_each_time_is_an_error(known: ctypes.CDLL, counting: Any) -> None:
    turns = iter(range(10, 100))
    with pytest.raises(RuntimeError, match="then"):
        counting.count(lambda: known.loop(next(turns)))


RECORDED = {"experts bf16 1 rows": 100_000, "experts int8 1 rows": 200_000}


def test_a_call_that_grew_by_one_percent_is_too_large() -> None:
    (change,) = changes(RECORDED, RECORDED | {"experts int8 1 rows": 202_000})
    assert (change.name, change.is_shown, change.is_too_large) == ("experts int8 1 rows", True, True)
    assert change.growth == pytest.approx(0.01)


def test_what_shrank_is_shown_and_what_hardly_differs_is_not() -> None:
    shrunk, close = changes(RECORDED, {"experts bf16 1 rows": 98_000, "experts int8 1 rows": 200_010})
    assert (shrunk.is_shown, shrunk.is_too_large, close.is_shown, close.is_too_large) == (True, False, False, False)


def test_calls_without_a_second_count_are_shown() -> None:
    gone, new = changes({"a": 1}, {"b": 1})
    assert gone.is_shown and new.is_shown and not gone.is_too_large and not new.is_too_large


def test_another_compiler_or_machine_is_not_judged() -> None:
    here = Counts(compiler="GCC 12", machine=["avx2"], calls=RECORDED)
    assert not_judged(here, here) == ""
    for other in (Counts(compiler="GCC 13", machine=["avx2"], calls={}), Counts(compiler="GCC 12", calls={})):
        assert not_judged(here, other)


def test_counts_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = Counts(compiler="GCC: (Debian) 12", calls=RECORDED)
    reference.write("avx2", written, tmp_path)
    assert reference.read("avx2", tmp_path) == written
    assert reference.read("amx", tmp_path) is None


@pytest.mark.parametrize("group", [group for group in calls.groups() if group != calls.ENGINE])
def test_every_call_of_an_instruction_set_is_recorded(group: str) -> None:
    if reason := _kernels.grants()[group]:
        pytest.skip(reason)
    recorded = reference.read(group)
    assert recorded is not None and list(recorded.calls) == calls.names_of(group)
