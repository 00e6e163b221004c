"""A seccomp filter: the kernel answers only the system calls that computing needs. Runs in the child: imports little.

All others fail with EPERM: sockets, processes, signals to others, tracing, mounting, changing files by name, io_uring.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from ktbench.eval.sandbox import linux

_MODE_FILTER = 2
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: ld [k]; jeq k; ret k
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_ARCH_X86_64 = 0xC000003E

# Numbers of x86-64. None of these opens, names or reaches what Landlock does not guard.
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

_CLONE3 = 435  # its flags lie in memory, where a filter cannot read; without it libc takes clone


def deny_calls() -> None:
    """Deny all but a list of system calls for good. Raises OSError. Needs PR_SET_NO_NEW_PRIVS, and to be one thread."""
    program = _program()
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    linux.prctl(linux.PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


def _program() -> bytes:
    code = [_step(_LOAD, _ARCH_AT), _step(_EQUAL, _ARCH_X86_64, 1, 0), _step(_RETURN, _KILL_PROCESS)]
    code.append(_step(_LOAD, _NUMBER_AT))  # numbers of x32, the other ABI, are large and in no list
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
    own_flags = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD … F_SETFL; not F_SETOWN, which has signals sent to others
    harmless = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
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
