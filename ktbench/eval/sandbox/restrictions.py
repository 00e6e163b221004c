"""Restricts this process for good: limits, Landlock (files) and seccomp (system calls).

Runs in the child: imports little. System calls that are not listed fail with EPERM: sockets, processes, signals to
others, tracing, mounting, changing files by name, io_uring.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypedDict

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SYS_CAPSET, _SYS_UNSHARE = 126, 272  # x86-64
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its number. Raises OSError."""
    return _check_result(int(_libc.syscall(ctypes.c_long(number), *map(_word, arguments))))


def prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    """Change a property of this process. Raises OSError."""
    words = [*map(_word, arguments), *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    _check_result(int(_libc.prctl(ctypes.c_int(option), *words)))


def leave_namespaces() -> None:
    """Become an unprivileged user in a user namespace, without a network. Raises OSError if refused."""
    call(_SYS_UNSHARE, _CLONE_NEWUSER | _CLONE_NEWNET)


def drop_capabilities() -> None:
    """Give up root's capabilities. Raises OSError."""
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), 8)
    call(_SYS_CAPSET, header, ctypes.create_string_buffer(bytes(24), 24))


def _word(value: int | ctypes.Array[ctypes.c_char] | None) -> object:
    """As wide as a register; ctypes would pass an int of 32 bits."""
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def _check_result(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_ALL_OF_NETWORK = 0b11  # bind and connect of TCP
_ALL_SCOPES = 0b11  # abstract UNIX sockets, signals


def landlock_version() -> int:
    """The version of the kernel's Landlock. Raises OSError without Landlock."""
    return call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def deny_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Deny every file permanently, except reading below `readable`, and `writable` files. Raises OSError.

    File names stay visible, since Landlock does not restrict `stat`. Needs PR_SET_NO_NEW_PRIVS.
    """
    handled = _ruleset_attr(landlock_version())
    ruleset = call(_CREATE_RULESET, ctypes.create_string_buffer(handled, len(handled)), len(handled), 0)
    for path in readable:
        _allow(ruleset, path, of_files=_READ_FILE, of_folders=_READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, of_files=_READ_FILE | _WRITE_FILE, of_folders=0)
    call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _ruleset_attr(abi: int) -> bytes:
    """A struct landlock_ruleset_attr with every right of a version."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    return struct.pack("3Q", files, _ALL_OF_NETWORK, _ALL_SCOPES)[: 8 if abi < 4 else 16 if abi < 6 else 24]


def _allow(ruleset: int, path: str, of_files: int, of_folders: int) -> None:
    """Allow access to a file, if it exists."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    rights = of_folders if stat.S_ISDIR(os.fstat(opened).st_mode) else of_files
    rule = struct.pack("=Qi", rights, opened)
    call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
    os.close(opened)


_MODE_FILTER = 2
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: ld [k]; jeq k; ret k
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_ARCH_X86_64 = 0xC000003E

# Numbers of x86-64. None of these opens, names or reaches anything that Landlock does not guard.
_CALLS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36,
    "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "chdir": 80,
    "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
    "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
    "ppoll": 271, "set_robust_list": 273, "dup3": 292, "pipe2": 293, "getrandom": 318, "statx": 332,
    "rseq": 334, "openat2": 437, "faccessat2": 439,
}  # fmt: skip

_CLONE3 = 435  # its flags are in memory, which a filter cannot read; without it libc uses clone


def deny_calls() -> None:
    """Permanently deny unlisted system calls. Raises OSError. Needs PR_SET_NO_NEW_PRIVS and a single thread."""
    program = _program()
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


def _program() -> bytes:
    code = [_step(_LOAD, _ARCH_AT), _step(_EQUAL, _ARCH_X86_64, 1, 0), _step(_RETURN, _KILL_PROCESS)]
    code.append(_step(_LOAD, _NUMBER_AT))  # numbers of x32, the other ABI, are large and not listed
    for number in _CALLS.values():
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    for number, place, values in _where_arguments():
        code += _if_argument(number, place, values)
    code += [_step(_EQUAL, _CLONE3, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    return b"".join([*code, _step(_RETURN, _ERRNO | errno.EPERM)])


def _where_arguments() -> list[tuple[int, int, tuple[int, ...]]]:
    """Calls that are allowed for some values of an argument: number, place, values."""
    own = (os.getpid(),)
    threads_only = (0x3D0F00, 0x7D0F00)  # the flags of glibc's and musl's threads
    own_flags = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD … F_SETFL; not F_SETOWN, which makes the kernel signal others
    harmless = (
        0x5401,
        0x5413,
        0x541B,
        0x5421,
        0x5450,
        0x5451,
    )  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    return [
        (56, 0, threads_only),  # clone
        (62, 0, own),  # kill
        (234, 0, own),  # tgkill
        (302, 0, (0,)),  # prlimit64, of itself
        (72, 1, own_flags),  # fcntl
        (16, 1, harmless),  # ioctl
    ]


def _if_argument(number: int, place: int, values: tuple[int, ...]) -> list[bytes]:
    """These arguments are ints or have no flag in their upper half, so its lower half decides."""
    code = [_step(_LOAD, _FIRST_ARGUMENT_AT + 8 * place)]
    for value in values:
        code += [_step(_EQUAL, value, 0, 1), _step(_RETURN, _ALLOW)]
    code.append(_step(_RETURN, _ERRNO | errno.EPERM))
    return [_step(_EQUAL, number, 0, len(code)), *code]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """A struct sock_filter."""
    return struct.pack("HBBI", code, if_true, if_false, value)


class Restrictions(TypedDict):
    """The child's restrictions: it may read files below `readable`, and dies with `parent`.

    `address_bytes` limits what it maps; its parent watches the memory that it really uses.
    """

    parent: int
    cpu_s: int
    address_bytes: int
    output_bytes: int
    readable: Sequence[str]


_STACK_BYTES = 64 * 2**20  # deep recursion is not an error
_OPEN_FILES = 64


def restrict_process(limits: Restrictions) -> list[str]:
    """Deny this process network, files, processes and signals, and limit it; the mechanisms in force, in words.

    Only files below `readable` and in the current folder may be read, and only /dev/null written. Raises OSError with
    one line if the kernel cannot deny files or network: nothing may run then.
    """
    if (machine := os.uname().machine) != "x86_64":
        raise OSError(errno.ENOSYS, f"the list of harmless system calls is one of x86-64, and this is {machine}")
    _limit(limits["cpu_s"], limits["address_bytes"], limits["output_bytes"])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    mechanisms = ["limits of time, memory, output and threads", *_namespaces()]
    drop_capabilities()
    _die_with(limits["parent"])
    version = _landlock([*limits["readable"], "."])
    _seccomp()
    return [*mechanisms, f"Landlock {version} (files)", "seccomp (network, processes, signals)"]


def _limit(cpu_s: int, address_bytes: int, output_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: address_bytes,
        resource.RLIMIT_STACK: _STACK_BYTES,
        resource.RLIMIT_FSIZE: output_bytes,  # its output goes to a file in memory
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        granted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (granted, granted))


def _namespaces() -> list[str]:
    """A second barrier to the network, if granted; seccomp alone denies the network."""
    with suppress(OSError):
        leave_namespaces()
        return ["namespaces (user, network)"]
    return []


def _die_with(parent: int) -> None:
    """The kernel kills this process when the parent dies. New namespaces undo this, so it comes after them."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _landlock(readable: Sequence[str]) -> int:
    """The version of Landlock that restricts this process."""
    try:
        version = landlock_version()
        deny_files(readable, ["/dev/null"])
    except OSError as error:
        needs = "Linux 5.13 or later with landlock among its security modules"
        raise OSError(
            error.errno, f"Landlock, which denies files, is missing ({error.strerror}); needs {needs}"
        ) from None
    return version


def _seccomp() -> None:
    try:
        deny_calls()
    except OSError as error:
        raise OSError(error.errno, f"seccomp, which denies the network, is missing ({error.strerror})") from None
