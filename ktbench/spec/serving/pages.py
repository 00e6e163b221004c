"""The pages that hold keys and values of served requests: how many there are, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.spec.engine import ServingSpec

_BF16_BYTES = 2
# Of pages that wait to be written to the disk, and of pages that are read ahead from there.
DISK_MEMORY_BYTES = 256 * 2**20
_LLAMA_CELLS = 256  # what llama.cpp rounds a context to (llama.h: n_ctx)
_MEMORY_SHARE = 4  # of the machine's memory, a 4th for keys and values where no number is given


@dataclass(frozen=True, kw_only=True, slots=True)
class PageMemory:
    """`count` pages for sequences, each of `page_bytes`, and one more that is nobody's."""

    count: int
    page_bytes: int

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return (self.count + 1) * self.page_bytes


def page_memory(serving: ServingSpec, numbers: int, positions: int, memory_bytes: int) -> PageMemory:
    """As many pages as `serving` says; else for as many long sequences as may run, within a share of the memory.

    All layers keep `numbers` of a position, in bf16; a sequence has up to `positions`. `memory_bytes` is what the
    machine has in all, 0 where it is not known and limits nothing.
    """
    page_bytes = _BF16_BYTES * numbers * serving.page_tokens
    if serving.cache_tokens is not None:
        return PageMemory(count=serving.cache_tokens // serving.page_tokens, page_bytes=page_bytes)
    wanted = serving.max_sequences * -(-positions // serving.page_tokens)
    most = memory_bytes // _MEMORY_SHARE // page_bytes if memory_bytes else wanted
    return PageMemory(count=max(1, min(wanted, most)), page_bytes=page_bytes)


def copies_bytes(serving: ServingSpec) -> int:
    """The most that a prefix cache holds beside the pages of sequences: copies in memory, and buffers of the disk."""
    buffers = 0 if serving.disk is None else 2 * min(DISK_MEMORY_BYTES, serving.disk_bytes)
    return serving.ram_bytes + buffers


def whole_cells(positions: int) -> int:
    """So many positions of a sequence as llama.cpp rounds them up."""
    return _LLAMA_CELLS * -(-positions // _LLAMA_CELLS)
