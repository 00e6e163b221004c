"""Landlock: the kernel denies every file but those named. Runs in the child: imports little."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from ktbench.eval.sandbox import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_ALL_OF_NETWORK = 0b11  # bind and connect of TCP
_ALL_SCOPES = 0b11  # abstract UNIX sockets, signals


def version() -> int:
    """The version of the kernel's Landlock. Raises OSError where there is none."""
    return linux.call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def deny_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Deny every file for good, but for reading below `readable`, and `writable` files. Raises OSError.

    Names of files stay visible, as Landlock has no word on `stat`. Needs PR_SET_NO_NEW_PRIVS.
    """
    handled = _handled(version())
    ruleset = linux.call(_CREATE_RULESET, ctypes.create_string_buffer(handled, len(handled)), len(handled), 0)
    for path in readable:
        _allow(ruleset, path, of_files=_READ_FILE, of_folders=_READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, of_files=_READ_FILE | _WRITE_FILE, of_folders=0)
    linux.call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _handled(abi: int) -> bytes:
    """A struct landlock_ruleset_attr with every right that a version knows."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    return struct.pack("3Q", files, _ALL_OF_NETWORK, _ALL_SCOPES)[: 8 if abi < 4 else 16 if abi < 6 else 24]


def _allow(ruleset: int, path: str, of_files: int, of_folders: int) -> None:
    """Nothing to allow where there is no such file."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    rights = of_folders if stat.S_ISDIR(os.fstat(opened).st_mode) else of_files
    rule = struct.pack("=Qi", rights, opened)
    linux.call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
    os.close(opened)
