"""Hostile programs: each ends, fails, and has read and changed nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from ktbench.eval.sandbox.running import Limits, call_program, run_program

SMALL = Limits(seconds=1, memory_bytes=256 * 2**20, output_bytes=2**20)
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def why(source: str, limits: Limits = SMALL) -> str:
    ended = run_program(source, limits=limits)
    assert not ended.finished
    return ended.why


def children() -> set[str]:
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_endless_loops() -> None:
    stubborn = "import signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
    assert why(stubborn + "while True: pass") == "took more than 1 s"


def test_waiting_for_ever() -> None:
    for wait in (
        "import threading; threading.Event().wait()",
        "import ctypes, os; ctypes.CDLL(None).kill(os.getpid(), 19)",
    ):
        assert why(wait, Limits(sleep_s=1)) == "slept for more than 1 s"


@pytest.mark.parametrize(
    "source",
    [
        "x = [0] * 10**9",
        "x = [b'x' * 2**20 for _ in range(10**6)]",
        "import mmap; mmap.mmap(-1, 2**30)[:] = b'x' * 2**30",
    ],
)
def test_memory_bombs(source: str) -> None:
    reason = why(source, Limits(seconds=3, memory_bytes=128 * 2**20))
    assert reason == "used more than 128 MiB" or "Cannot allocate memory" in reason


def test_memory_that_hides_is_found() -> None:
    """Shared memory stays in use when its pages are dropped from the process."""
    hide = "import mmap\nheld = []\nwhile True:\n    held.append(mmap.mmap(-1, 2**24)); held[-1][:] = b'x' * 2**24\n"
    reason = why(hide + "    held[-1].madvise(mmap.MADV_DONTNEED)", Limits(seconds=5, memory_bytes=128 * 2**20))
    assert reason == "used more than 128 MiB"


def test_process_bombs() -> None:
    before = children()
    assert why("import os\nwhile True: os.fork()") == "tried to start a process"
    assert why("import subprocess; subprocess.Popen(['sleep', '99'])") == "tried to start a process"
    assert why("import multiprocessing as m; m.Process(target=print).start()") == "tried to start a process"
    assert run_program(LIBC + "print([libc.fork() for _ in range(9)])", limits=SMALL).stdout == f"{[-1] * 9}\n"
    assert children() == before


def test_thread_bombs() -> None:
    bomb = "import threading, time\nthreading.stack_size(2**16)\n"
    bomb += "while True: threading.Thread(target=time.sleep, args=(9,)).start()"
    assert why(bomb, Limits(seconds=1, threads=8)) == "started more than 8 threads"


@pytest.mark.parametrize("path", ["/etc/passwd", __file__, "/proc/self/environ", "/etc/shadow", "/tmp/x/../y"])
def test_reading_files(path: str) -> None:
    assert why(f"try: open({path!r})\nexcept OSError: pass") == f"tried to open {path}"
    assert why(f"import pathlib; pathlib.Path({path!r}).read_bytes()") == f"tried to open {path}"


def test_reading_files_without_python() -> None:
    paths = ("/etc/passwd", __file__, "/proc/self/environ", f"/proc/{os.getpid()}/environ", "/dev/shm")
    source = LIBC + f"print([(libc.open(p.encode(), 0), ctypes.get_errno()) for p in {paths}])"
    assert run_program(source, limits=SMALL).stdout == f"{[(-1, 13)] * 5}\n"


def test_reading_files_by_detours() -> None:
    """Descriptors that only name a file, links to descriptors, relative paths, and a hook that is out of the way."""
    assert why("open('/proc/self/root/etc/passwd')") == "tried to open /proc/self/root/etc/passwd"
    assert why("open('../../../../../../etc/passwd')").startswith("tried to open ../")
    assert why("import os; os.chdir('/etc'); open('passwd')") == "tried to open passwd"
    assert why("import os; os.open('/etc/passwd', os.O_PATH)") == "tried to open /etc/passwd"
    assert why("open('/proc/self/fd/1', 'w')") == "tried to write /proc/self/fd/1"
    assert why("open('/dev/stdin', 'r+')") == "tried to write /dev/stdin"
    name = LIBC + "O_PATH = 0o10000000\nfd = libc.open(b'/etc/passwd', O_PATH); folder = libc.open(b'/etc', O_PATH)\n"
    name += "again = libc.open(b'/proc/self/fd/%d' % fd, 0), libc.openat(folder, b'passwd', 0)\n"
    assert run_program(name + "print(again, libc.read(fd, bytes(9), 9))", limits=SMALL).stdout == "(-1, -1) -1\n"
    unhook = "import gc\nfor f in [f for f in gc.get_objects() if getattr(f, '__name__', '') == 'watch']:\n"
    unhook += "    for cell in f.__closure__ or ():\n"
    unhook += "        if callable(cell.cell_contents): cell.cell_contents = lambda *_: None\n"
    assert "Permission denied: '/etc/passwd'" in why(unhook + "open('/etc/passwd')")
    assert "Permission denied: 'here'" in why(unhook + "open('here', 'w')")


def test_no_descriptor_of_ours_is_left() -> None:
    """Standard streams and the report, and nothing that holds the job or its token."""
    source = LIBC + "held = [fd for fd in range(64) if libc.fcntl(fd, 1) >= 0]; print(len(held))\n"
    source += "print(b'token' in b''.join(os.pread(fd, 10**6, 0) for fd in held if fd != 2))"
    assert run_program(source, limits=SMALL).stdout == "4\nFalse\n"


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to("/etc")
    assert why(f"open('{tmp_path}/lib/passwd')") == f"tried to open {tmp_path}/lib/passwd"
    assert why("import os; os.listdir('..')") == "tried to list .."


def test_writing_files(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_text("kept")
    assert why(f"open({str(target)!r}, 'a')") == f"tried to write {target}"
    assert why("open('here', 'w')") == "tried to write here"
    for change in (
        "remove({0!r})",
        "truncate({0!r}, 0)",
        "rename({0!r}, 'x')",
        "chmod({0!r}, 0)",
        "mkdir({0!r} + 'x')",
    ):
        assert why("import os; os." + change.format(str(target))) in {
            "tried to change files",
            f"tried to write {target}",
        }
    calls = "libc.open(p, 66, 511), libc.truncate(p, 0), libc.unlink(p), libc.chmod(p, 0), libc.rename(p, b'/x')"
    source = (
        LIBC + f"p = {str(target)!r}.encode(); print({calls}, libc.mkdir(p + b'x', 511), libc.creat(p + b'y', 511))"
    )
    assert run_program(source, limits=SMALL).stdout == f"{' '.join(['-1'] * 7)}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert target.read_text() == "kept"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_network(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    reason = "tried to use the network"
    assert why(f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}))\nexcept OSError: pass") == reason
    assert why(f"import urllib.request as u\ntry: u.urlopen('http://127.0.0.1:{port}')\nexcept OSError: pass") == reason
    assert (
        run_program(LIBC + "print([libc.socket(f, 1, 0) for f in range(50)])", limits=SMALL).stdout == f"{[-1] * 50}\n"
    )
    loop = f"import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', {port}))"
    assert why(loop, Limits()) == reason
    assert why("import asyncio, socket\nsocket.socket()", Limits()) == reason
    assert (
        why("import asyncio\nasyncio.run(asyncio.create_subprocess_shell('id'))", Limits())
        == "tried to start a process"
    )
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_our_environment_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    ended = run_program("import os, sys; print(dict(os.environ), sys.argv, [m for m in sys.modules if 'ktbench' in m])")
    assert "s3cret" not in ended.stdout
    assert "ktbench" not in ended.stdout
    assert why("import os; open(f'/proc/{os.getppid()}/environ')") == f"tried to open /proc/{os.getpid()}/environ"


def test_killing() -> None:
    assert why("import os; os.kill(os.getppid(), 9)") == "tried to signal a process"
    source = LIBC + "print(*[libc.kill(p, 15) for p in (os.getppid(), 0, -1, 1)])"
    assert run_program(source, limits=SMALL).stdout.split() == ["-1"] * 4


# Number and arguments of system calls on x86-64 that must not be answered.
DENIED = {
    "socket": (41, 2, 1, 0), "connect": (42, 0, 0, 0), "socketpair": (53, 1, 1, 0, 0), "clone": (56, 17, 0, 0, 0, 0),
    "clone in namespaces": (56, 0x3D0F00 | 0x10000000, 0, 0, 0, 0), "fork": (57,), "vfork": (58,),
    "execve": (59, 0, 0, 0), "fcntl F_SETOWN": (72, 1, 8, 1), "unlink": (87, 0), "chmod": (90, 0, 0),
    "ptrace": (101, 0, 0, 0, 0), "setsid": (112,), "prctl": (157, 1, 0, 0, 0, 0), "mount": (165, 0, 0, 0, 0, 0),
    "tkill": (200, 1, 9), "sched_setaffinity": (203, 0, 0, 0), "keyctl": (250, 0, 0, 0, 0, 0),
    "unshare": (272, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "prlimit64": (302, 1, 0, 0, 0),
    "setns": (308, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "memfd_create": (319, 0, 0),
    "bpf": (321, 0, 0, 0), "userfaultfd": (323, 0), "pidfd_send_signal": (424, 0, 9, 0, 0),
    "io_uring_setup": (425, 1, 0), "pidfd_open": (434, 1, 0), "x32 socket": (0x40000000 + 41, 2, 1, 0),
    "a call of tomorrow": (999,),
    "shmget": (29, 0, 4096, 0o1777), "shmat": (30, 0, 0, 0), "semget": (64, 0, 1, 0), "msgget": (68, 0, 0o1777),
    "mq_open": (240, 0, 0, 0, 0), "accept": (43, 0, 0, 0), "sendto": (44, 0, 0, 0, 0, 0, 0), "sendmsg": (46, 0, 0, 0),
    "bind": (49, 0, 0, 0), "listen": (50, 0, 1), "shutdown": (48, 0, 0), "clone for a process": (56, 0, 0, 0, 0, 0),
    "kill": (62, 1, 0), "kill the group": (62, 0, 9), "tgkill": (234, 1, 1, 9), "rt_sigqueueinfo": (129, 1, 9, 0),
    "rt_tgsigqueueinfo": (297, 1, 1, 9, 0), "signalfd4": (289, -1, 0, 8, 0), "fcntl F_NOTIFY": (72, 1, 1026, 1),
    "fcntl F_SETLEASE": (72, 1, 1024, 0), "fcntl F_SETPIPE_SZ": (72, 1, 1031, 2**20),
    "fcntl F_ADD_SEALS": (72, 1, 1033, 1), "ioctl TIOCSTI": (16, 0, 0x5412, 0), "ioctl TIOCLINUX": (16, 0, 0x541C, 0),
    "ioctl FIOASYNC": (16, 0, 0x5452, 0), "truncate": (76, 0, 0), "ftruncate": (77, 1, 0), "getdents": (78, 0, 0, 0),
    "fchdir": (81, 0), "rename": (82, 0, 0), "mkdir": (83, 0, 0o777), "creat": (85, 0, 0o777), "link": (86, 0, 0),
    "symlink": (88, 0, 0), "fchmod": (91, 1, 0o777), "chown": (92, 0, 0, 0), "fchown": (93, 1, 0, 0),
    "mknod": (133, 0, 0, 0), "utimensat": (280, 0, 0, 0, 0), "setxattr": (188, 0, 0, 0, 0, 0),
    "fallocate": (285, 1, 0, 0, 4096), "splice": (275, 0, 0, 1, 0, 4096, 0), "sendfile": (40, 1, 0, 0, 4096),
    "copy_file_range": (326, 0, 0, 1, 0, 4096, 0), "flock": (73, 1, 2), "execveat": (322, 0, 0, 0, 0, 0x1000),
    "memfd_secret": (447, 0), "name_to_handle_at": (303, 0, 0, 0, 0, 0), "open_by_handle_at": (304, 0, 0, 0),
    "fanotify_init": (300, 0, 0), "inotify_init1": (294, 0), "epoll_create1": (291, 0), "eventfd2": (290, 0, 0),
    "timerfd_create": (283, 0, 0), "process_vm_writev": (311, 1, 0, 0, 0, 0, 0),
    "process_madvise": (440, 0, 0, 0, 0, 0), "pidfd_getfd": (438, 0, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0),
    "setuid": (105, 0), "setgid": (106, 0), "setgroups": (116, 0, 0), "capset": (126, 0, 0), "setpgid": (109, 0, 0),
    "setpriority": (141, 0, 0, -20), "sched_setscheduler": (144, 0, 0, 0), "ioprio_set": (251, 1, 0, 0),
    "setrlimit": (160, 7, 0), "prlimit64 of the parent": (302, 1, 7, 0, 0), "mlockall": (151, 1),
    "personality": (135, 0x40000), "arch_prctl": (158, 0x1001, 0), "modify_ldt": (154, 0, 0, 0), "iopl": (172, 3),
    "chroot": (161, 0), "pivot_root": (155, 0, 0), "umount2": (166, 0, 0), "swapon": (167, 0, 0),
    "reboot": (169, 0, 0, 0, 0), "sethostname": (170, 0, 0), "acct": (163, 0), "settimeofday": (164, 0, 0),
    "clock_settime": (227, 0, 0), "adjtimex": (159, 0), "init_module": (175, 0, 0, 0), "finit_module": (313, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0), "add_key": (248, 0, 0, 0, 0, 0), "syslog": (103, 3, 0, 0),
    "quotactl": (179, 0, 0, 0, 0), "seccomp": (317, 0, 0, 0), "landlock_restrict_self": (446, 0, 0),
    "fsopen": (430, 0, 0), "move_mount": (429, 0, 0, 0, 0, 0), "open_tree": (428, 0, 0, 0),
    "io_uring_enter": (426, 0, 0, 0, 0, 0, 0), "futimesat": (261, 0, 0, 0),
}  # fmt: skip


def test_raw_system_calls() -> None:
    source = LIBC + f"print([(libc.syscall(*c), ctypes.get_errno()) for c in {list(DENIED.values())}])"
    answers = eval(run_program(source, limits=SMALL).stdout)
    assert dict(zip(DENIED, answers, strict=True)) == dict.fromkeys(DENIED, (-1, 1))


def test_calls_of_other_machines_end_the_program() -> None:
    """A program may make machine code; the 32-bit way to call the kernel, with its other numbers, is closed."""
    code = "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n"
    code += "page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))\n"
    code += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
    assert why(code) == "ended by SIGSYS"


def test_exits_before_the_tests_do_not_pass() -> None:
    for leave in ("import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit", "quit()"):
        assert not run_program(leave, tests="assert False", limits=SMALL).finished
        within = f"def f():\n    {leave}"
        assert not run_program(within, tests="f()\nassert False", limits=SMALL).finished
        assert not call_program(within, "f", [[]], limits=SMALL).finished


def test_a_spoilt_report_does_not_pass() -> None:
    spoil = (
        'import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\'{"end": "0"}\\n\')\n    except OSError: pass\n'
    )
    assert not run_program(spoil + "os._exit(0)", tests="assert False", limits=SMALL).finished
    assert not run_program("import os; os.closerange(0, 64)", tests="assert True", limits=SMALL).finished
    erase = 'import os\nfor fd in range(3, 64):\n    try: os.lseek(fd, 0, 0), os.write(fd, b"[x" * 999)\n'
    assert why(erase + "    except OSError: pass\nos._exit(0)") == "ended before it was through"


def test_replaced_builtins_do_no_harm() -> None:
    source = "import builtins, json, os, sys\njson.dumps = os.write = os._exit = builtins.print = sys.exit = None\n"
    assert run_program(source, tests="assert True", limits=SMALL).finished
    assert not run_program(source, tests="assert False", limits=SMALL).finished


def test_what_passes_asserts_does_not_pass_calls() -> None:
    """Where tests run beside the program they can be fooled; what a call returns is compared out of its reach."""
    walk = "import json, os, sys\nframe = sys._getframe()\nwhile 'token' not in frame.f_locals: frame = frame.f_back\n"
    walk += "frame.f_locals['report']({'end': frame.f_locals['token']}); os._exit(0)"
    assert run_program(walk, tests="assert False", limits=SMALL).finished
    assert call_program(walk, "f", [[]], limits=SMALL).values == ()
    source = "class All:\n    def __eq__(self, other): return True\ndef f(): return All()"
    assert run_program(source, tests="assert f() == 1", limits=SMALL).finished
    assert "not JSON serializable" in call_program(source, "f", [[]], limits=SMALL).why


def test_printing_megabytes() -> None:
    ended = run_program("while True: print('x' * 1000)", limits=SMALL)
    assert ended.why == "printed or returned more than 1 MiB"
    assert len(ended.stdout) == 2**20
    assert run_program("import sys\nfor _ in range(100): sys.stderr.write('x' * 10**5)", limits=SMALL).finished


def test_closed_output_is_no_harm() -> None:
    for close in ("sys.stdout.close()", "os.close(1)", "os.close(0); os.close(2)"):
        assert run_program(f"import os, sys; {close}", tests="assert True", limits=SMALL).finished


def test_a_program_dies_with_us() -> None:
    script = "from ktbench.eval.sandbox.running import run_program; run_program('import time; time.sleep(60)')"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        children_file = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        # The first child may be a helper that ends at once: the program is the one under seccomp.
        child = until(
            lambda: next((pid for pid in children_file.read_text().split() if "Seccomp:\t2" in status(pid)), "")
        )
        parent.kill()
    until(lambda: "zombie" in (seen := status(child)) or not seen)


def status(pid: str) -> str:
    """Of a process; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(seen: object) -> str:
    deadline = monotonic() + 60
    while not (found := seen()):  # type: ignore[operator]
        assert monotonic() < deadline
        sleep(0.01)
    return found
