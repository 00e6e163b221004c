"""System calls that the standard library has no function for. Runs in the child: imports little."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SYS_CAPSET, _SYS_UNSHARE = 126, 272  # x86-64
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its number. Raises OSError."""
    return _checked(int(_libc.syscall(ctypes.c_long(number), *map(_word, arguments))))


def prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    """Change a property of this process. Raises OSError."""
    words = [*map(_word, arguments), *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    _checked(int(_libc.prctl(ctypes.c_int(option), *words)))


def leave_namespaces() -> None:
    """Become nobody in a user namespace, with an empty network. Raises OSError where that is not granted."""
    call(_SYS_UNSHARE, _CLONE_NEWUSER | _CLONE_NEWNET)


def drop_capabilities() -> None:
    """Give up what root may do. Raises OSError."""
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), 8)
    call(_SYS_CAPSET, header, ctypes.create_string_buffer(bytes(24), 24))


def _word(value: int | ctypes.Array[ctypes.c_char] | None) -> object:
    """As wide as a register; ctypes would pass an int of 32 bits."""
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
