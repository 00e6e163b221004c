"""What would crash or hang a process is an exception. Each kind of attack has a process of its own."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("loaded_children")
ROOT = Path(__file__).parents[2]
LARGE = 2**31 - 1
SETUP = """
import os, signal, sys, threading, time
import numpy as np
from ktbench import _kernels as k
cpus = (sorted(os.sched_getaffinity(0)) * 2)[:2]
pool = k.ThreadPool(cpus, 100)
bits = lambda *shape: np.full(shape, 0x3F80, np.uint16)

def experts(precision="int8"):
    packed = k.PackedExperts(4, 256, 128, precision)
    for i in range(4):
        packed.write_expert(i, bits(128, 256), bits(128, 256), bits(256, 128))
    return packed

def call(tokens=3):
    return {"hidden": bits(tokens, 256), "ids": np.zeros((tokens, 2), np.int64),
            "gates": np.ones((tokens, 2), np.float32), "out": bits(tokens, 256)}

def says(*kinds):
    class Says:
        def __enter__(self): pass
        def __exit__(self, kind, error, trace):
            print(f"{kind.__name__}: {error}" if kind else "nothing was raised", flush=True)
            return kind is not None and issubclass(kind, kinds)
    return Says()
"""


def attacked(code: str, *arguments: object, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """The child's output, once it has ended."""
    command = [sys.executable, "-c", SETUP + code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_s)


def refusals(code: str, *arguments: object) -> list[str]:
    done = attacked(code, *arguments)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])
    return done.stdout.splitlines()


NOTHING = [
    "k.MoE(None, pool)",
    "k.MoE(experts(), None)",
    "k.MoE(None, None).counters()",
    "k.Linear(None, pool)",
    "k.Linear(k.PackedMatrix(16, 32), None)",
    "k.DecodeAttention(None)",
    "k.ReadRoof(None, 1 << 20)",
    "k.HandOver(None)",
    "k.peak_flops(None, 'avx2', 0.01)",
    "k.ping_pong_ns(None)",
    "experts().copy_expert(0, None, 0)",
    "k.multiply_heads(bits(1, 1, 32), bits(1, 1, 32), bits(1, 1, 1), None)",
]


def test_none_in_place_of_an_object_is_a_type_error() -> None:
    said = refusals("\n".join(f"with says(TypeError): {expression}" for expression in NOTHING))
    assert sum(line.startswith("TypeError: ") for line in said) == len(NOTHING), said


SIZES = [
    *[f"k.PackedExperts({e}, {h}, {i})" for e, h, i in ((LARGE, 32, 32), (1, LARGE, 32), (1, 32, LARGE))],
    f"k.PackedExperts({LARGE}, {LARGE}, {LARGE})",
    f"k.PackedExperts({2**30}, {2**30}, {2**30})",
    f"k.PackedExperts({2**20}, {2**30}, {2**30}, 'int4_g128')",
    f"k.PackedExperts(1, 32, {2**30}, 'int8', {2**24})",
    *[f"k.PackedMatrix({rows}, {columns})" for rows, columns in ((LARGE, 32), (32, LARGE), (2**30, 2**30))],
    *[f"k.ReadRoof(pool, {nbytes})" for nbytes in (2**64 - 1, 2**63, 2**50)],
]


def test_sizes_that_overflow_are_refused() -> None:
    said = refusals("\n".join(f"with says(ValueError, MemoryError): {expression}" for expression in SIZES))
    assert len(said) == len(SIZES) and all(line.startswith(("ValueError", "MemoryError")) for line in said), said


TRUNCATED = """
file = sys.argv[1]
experts().save(file)
mapped = k.PackedExperts.map(file)
moe = k.MoE(mapped, pool)
moe.forward(**call(), isa="reference")
os.truncate(file, 4096)
with says(OSError): moe.forward(**call(), isa="reference")
with says(OSError): moe.submit(**call(), isa="reference").wait()
with says(OSError): mapped.read_expert(3)
with says(OSError): mapped.save(file + "-copy")
with says(OSError): k.PackedExperts(4, 256, 128, "int8").copy_expert(0, mapped, 0)
os.unlink(file)
experts().save(file)
k.MoE(k.PackedExperts.map(file), pool).forward(**call(), isa="reference")
matrix = k.PackedMatrix(64, 8192)
matrix.save(file)
linear = k.Linear(k.PackedMatrix.map(file), pool)
os.truncate(file, 4096)
with says(OSError): linear.forward(bits(1, 8192), bits(1, 64))
with says(RuntimeError): k.PackedMatrix.map(file)
"""


def test_a_mapped_file_that_is_truncated_is_an_os_error_with_its_name(tmp_path: Path) -> None:
    """Not SIGBUS: in every call from then on, and in no other file's."""
    *said, again = refusals(TRUNCATED, tmp_path / "packed")
    assert len(said) == 6 and all(line.startswith("OSError") and f"{tmp_path}/packed" in line for line in said), said
    assert "holds no packed matrix" in again or "has 4096 bytes" in again
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]  # of the copy nothing is left


WHILE_IT_RUNS = """
file = sys.argv[1]
packed = k.PackedExperts(8, 1024, 1024, "bf16")
packed.save(file)
moe = k.MoE(k.PackedExperts.map(file), pool)
threading.Timer(0.2, os.truncate, (file, 4096)).start()
batch = {"hidden": bits(64, 1024), "ids": np.tile(np.arange(8), (64, 1)), "gates": np.ones((64, 8), np.float32),
         "out": bits(64, 1024)}
with says(OSError):
    while True: moe.forward(**batch, isa="reference")
"""


def test_a_file_that_is_truncated_during_a_call_is_an_os_error(tmp_path: Path) -> None:
    (said,) = refusals(WHILE_IT_RUNS, tmp_path / "packed")
    assert said.startswith("OSError")


OTHERS_BUS_ERROR = """
import mmap
file = sys.argv[1]
experts().save(file)
mapped = k.PackedExperts.map(file)
with open(file + "-other", "wb+") as other:
    other.truncate(4096)
    view = mmap.mmap(other.fileno(), 4096)
    other.truncate(0)
    view[0]
"""


def test_bus_errors_of_other_memory_end_the_process_as_before(tmp_path: Path) -> None:
    assert attacked(OTHERS_BUS_ERROR, tmp_path / "packed").returncode == -signal.SIGBUS
    sent = "experts().save(sys.argv[1]); k.PackedExperts.map(sys.argv[1]); os.kill(os.getpid(), signal.SIGBUS)"
    assert attacked(sent, tmp_path / "sent").returncode == -signal.SIGBUS


# Another thread writes what is out of range; a call may refuse it or not see it.
RACE = """
def race(array, good, action):
    over = threading.Event()
    def spoil():
        while not over.is_set():
            array[...] = np.iinfo(array.dtype).max
            array[...] = good
    thread = threading.Thread(target=spoil)
    thread.start()
    until, seen = time.monotonic() + 0.25, 0
    while time.monotonic() < until:
        try: action()
        except IndexError: seen += 1
    over.set(), thread.join()
    print("survived")
"""
IDS = """
moe, batch = k.MoE(experts(), pool), call(2000)
race(batch["ids"], 1, lambda: moe.forward(**batch, isa="reference"))
"""
LENGTHS = """
attention, length = k.DecodeAttention(pool), np.ones(64, np.int64)
q, keys = bits(64, 4, 32), bits(64, 4, 128, 32)
first, out = np.zeros(64, np.int64), bits(64, 4, 32)
race(length, 100, lambda: attention.forward(q, keys, keys, first, length, out, scale=1.0))
"""
POSITIONS = """
position, keys, values = np.zeros(64, np.int64), bits(64, 4, 16, 32), bits(64, 4, 16, 32)
qkv, cos, q = bits(64, 12 * 32), bits(64, 32), bits(64, 4, 32)
race(position, 5, lambda: k.prepare_heads(qkv, None, None, 1e-6, cos, cos, position, q, keys, values, team=pool))
"""
SLOTS = """
products, row = k.ExpertProducts(experts("bf16"), pool), np.zeros(2000, np.int32)
first, out = np.array([0, 500, 1000, 1500, 2000], np.int32), np.empty((1, 2000, 256), np.float32)
race(row, 1, lambda: products.forward("gate_up", bits(3, 256), row, first, out, isa="avx2"))
"""


@pytest.mark.parametrize(
    "code", [IDS, LENGTHS, POSITIONS, SLOTS], ids=["ids", "lengths", "positions", "slots of training"]
)
def test_what_another_thread_writes_is_refused_or_not_seen(code: str) -> None:
    assert refusals(RACE + code) == ["survived"]


FORKED = """
{use}
if child := os.fork():
    _, status = os.waitpid(child, 0)
    {use}
    print("child", os.waitstatus_to_exitcode(status), "parent goes on")
    sys.exit()
with says(RuntimeError): {use}
"""
USES = {
    "forward": ("moe = k.MoE(experts(), pool)", "moe.forward(**call(), isa='reference')"),
    "submit": ("moe = k.MoE(experts(), pool)", "moe.submit(**call(), isa='reference').wait()"),
    "own threads": (
        "moe = k.MoE(experts(), k.ThreadPool(cpus, 100, own=True))",
        "moe.forward(**call(), isa='reference')",
    ),
    "linear": ("linear = k.Linear(k.PackedMatrix(64, 64), pool)", "linear.forward(bits(2, 64), bits(2, 64))"),
    "packing": ("packed = experts()", "packed.write_expert(0, bits(128, 256), bits(128, 256), bits(256, 128), pool)"),
    "OpenMP": (
        "import torch; moe = k.MoE(experts(), k.OpenMPTeam(2))",
        "moe.forward(**call(), isa='reference')",
    ),
    "new team on OpenMP": (
        "import torch",
        "k.MoE(experts(), k.OpenMPTeam(2)).forward(**call(), isa='reference')",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_after_a_fork_a_used_team_refuses_instead_of_waiting_for_ever(use: str) -> None:
    before, used = USES[use]
    said, ended = refusals(f"{before}\n{FORKED.format(use=used)}")
    assert said.startswith("RuntimeError") and "fork" in said
    assert ended == "child 0 parent goes on"


def test_a_child_makes_a_pool_of_its_own() -> None:
    code = """
moe = k.MoE(experts(), pool)
moe.forward(**call(), isa="reference")
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    k.MoE(experts(), k.ThreadPool(cpus, 100)).forward(**call(), isa="reference")
"""
    assert refusals(code) == ["0"]


def test_a_call_under_way_does_not_hold_up_the_end_of_a_child() -> None:
    code = """
moe = k.MoE(experts(), pool)
ticket = moe.submit(**call(), isa="reference")
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    ticket.wait()
else:
    del ticket, moe
"""
    assert refusals(code) == ["0"]


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("packed", ["experts()", "k.PackedMatrix(64, 64)"])
def test_saving_never_replaces_what_is_no_file(tmp_path: Path, kind: str, packed: str) -> None:
    place = tmp_path / "place"
    if kind == "fifo":
        os.mkfifo(place)
    else:
        try:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices cannot be made here")
    before = place.lstat()
    (said,) = refusals(f"with says(OSError): {packed}.save(sys.argv[1])", place)
    assert str(place) in said and "no regular file" in said
    assert place.lstat() == before and [path.name for path in tmp_path.iterdir()] == ["place"]
