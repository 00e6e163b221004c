"""Binds memory to a NUMA node, so that one domain can be timed reading another's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# x86-64, as the kernels are; the C library has no wrapper (set_mempolicy(2) is libnuma's).
_SYS_SET_MEMPOLICY = 238
_MPOL_DEFAULT, _MPOL_BIND = 0, 2
_MASK_WORDS = 16
_WORD_BITS = 64


@contextmanager
def memory_on_node(node: int) -> Iterator[None]:
    """Pages that this thread, and threads it starts meanwhile, touch first come from one node (set_mempolicy(2)).

    Raises OSError where the kernel refuses, as it does for a node without memory or outside the cpuset.
    """
    words = (ctypes.c_ulong * _MASK_WORDS)()
    words[node // _WORD_BITS] = 1 << node % _WORD_BITS
    _set_mempolicy(_MPOL_BIND, words, _MASK_WORDS * _WORD_BITS)
    try:
        yield
    finally:
        _set_mempolicy(_MPOL_DEFAULT, None, 0)


def _set_mempolicy(mode: int, mask: ctypes.Array[ctypes.c_ulong] | None, bits: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_SYS_SET_MEMPOLICY), ctypes.c_int(mode), mask, ctypes.c_ulong(bits)):
        error = ctypes.get_errno()
        raise OSError(error, f"set_mempolicy: {os.strerror(error)}")
