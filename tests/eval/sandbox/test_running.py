"""Harmless programs: how they run, and the reason where they fail."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec

import pytest

from ktbench.eval.sandbox.running import Limits, ProgramResult, call_program, run_program, sandbox_mechanisms

SMALL = Limits(seconds=1, memory_bytes=256 * 2**20, output_bytes=2**20)


def ended(source: str, **more: str) -> ProgramResult:
    return run_program(source, limits=SMALL, **more)


def test_a_program_reads_and_prints() -> None:
    assert ended("print(int(input()) + 1)\nprint(input())", stdin="41\nü") == ProgramResult(
        finished=True, stdout="42\nü\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import sys; print('yes'); sys.exit(0)",
        "print('yes'); exit()",
        "if __name__ == '__main__': print('yes')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.01), print('yes'))).start()",
        "import atexit; atexit.register(print, 'yes')",
        "import os; os.write(1, b'yes\\n')",
        "import sys, io; out, sys.stdout = sys.stdout, io.StringIO(); out.write('yes\\n'); sys.stdout = None",
        "from dataclasses import dataclass\n@dataclass\nclass A: x: 'int'\nprint('yes')",
        "print(open(0).read() + 'yes')",
        "print(open('/dev/stdin').read() + 'yes')",
        "import os; print(os.fdopen(os.open('/dev/fd/0', os.O_RDONLY)).read() + 'yes')",
        "import pathlib; print(pathlib.Path('/proc/self/fd/0').read_text() + 'yes')",
        "open('/dev/null', 'w').write('no'); print('yes')",
        "import asyncio\nasync def f(): print('yes')\nasyncio.run(f())",
        "import asyncio\nasync def f():\n    await asyncio.gather(asyncio.sleep(.01), asyncio.to_thread(print, 'yes'))"
        "\nasyncio.run(f())",
        "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\nprint('yes')",
        "import sys; sys.setrecursionlimit(10**6); f = lambda n: n and 1 + f(n - 1); f(50_000); print('yes')",
        "import functools, sys; sys.setrecursionlimit(10**6)\n"
        "f = functools.cache(lambda n: n and 1 + f(n - 1)); f(50_000); print('yes')",
    ],
)
def test_what_programs_do(source: str) -> None:
    assert ended(source) == ProgramResult(finished=True, stdout="yes\n")


def test_standard_input_has_several_names() -> None:
    for name in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        assert ended(f"print(open({name!r}).read(), input())", stdin="1\n2").stdout == "1\n2 1\n"


def test_numpy_is_there() -> None:
    assert ended("import numpy; print(numpy.arange(3) @ numpy.ones(3))").stdout == "3.0\n"


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
def test_numba_compiles() -> None:
    source = (
        "import numba\n@numba.njit\ndef f(n):\n    s = 0\n    for i in range(n): s += i\n    return s\nprint(f(10))"
    )
    assert run_program(source) == ProgramResult(finished=True, stdout="45\n")


def test_addresses_are_no_memory() -> None:
    """A GiB that is mapped and not used is no reason to end a program that may use a quarter of it."""
    anonymous = "import mmap; held = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
    assert ended(anonymous + "held[:3] = b'yes'; print(held[:3].decode())").stdout == "yes\n"
    assert ended("import numpy; print(numpy.zeros(2**27)[-1])").stdout == "0.0\n"
    stacks = "import threading\nthreading.stack_size(2**26)\n"
    stacks += "threads = [threading.Thread(target=list) for _ in range(12)]\nfor one in threads: one.start()\n"
    assert ended(stacks + "for one in threads: one.join()").finished


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = 1 +", "SyntaxError: invalid syntax (program.py, line 1)"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("class E(Exception):\n def __str__(self): raise E\nraise E", "E"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("import os; os._exit(0)", "ended before it was through"),
        ("import ctypes, os; ctypes.CDLL(None).kill(os.getpid(), 40)", "ended by signal 40"),
    ],
)
def test_why_in_words(source: str, why: str) -> None:
    result = ended(source)
    assert not result.finished
    assert result.why == why


def test_tests_see_the_program_and_may_fail() -> None:
    source = "def f(x): return x + 1\nif __name__ == '__main__': raise SystemExit"
    assert ended(source, tests="assert f(1) == 2").finished
    assert ended(source, tests="assert f(1) == 3, 'no'").why == "AssertionError: no"


def test_the_programs_future_is_not_the_tests_nor_ours() -> None:
    assert ended("def f(x: y): ...", tests="").why == "NameError: name 'y' is not defined"


def test_values_of_calls() -> None:
    source = "class Solution:\n    def twice(self, x): return (x, x) if x else 1 / x"
    result = call_program(source, "twice", [[1], ["a"], [[2.5]], [0], [1]], limits=SMALL)
    assert result == ProgramResult(
        finished=False,
        stdout="",
        values=([1, 1], ["a", "a"], [[2.5], [2.5]]),
        why="ZeroDivisionError: division by zero",
    )
    assert call_program("def f(a, b): return a == b", "f", [[1, 2], [1, 1]]).values == (False, True)
    assert "no attribute 'g'" in call_program("def f(): ...", "g", [[]]).why
    assert "not JSON serializable" in call_program("def f(): return {1}", "f", [[]]).why


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("(1, [2])", [1, [2]]),
        ("[np.int64(3), np.float32(0.5), np.bool_(True), np.str_('a')]", [3, 0.5, True, "a"]),
        ("{'a': np.uint8(1), 'b': np.array(2)}", {"a": 1, "b": 2}),
        ("np.arange(3).tolist()", [0, 1, 2]),
        ("Counter('aa')", {"a": 2}),
        ("[Fraction(6, 2), Fraction(1, 2), Decimal('3.0'), 3 + 0j, 2**70]", [3, 0.5, 3, 3, 2**70]),
        ("np.float64('inf')", math.inf),
    ],
)
def test_values_are_those_that_json_holds(value: str, wanted: object) -> None:
    source = "import numpy as np\nfrom collections import Counter\nfrom decimal import Decimal\n"
    source += f"from fractions import Fraction\ndef f(): return {value}"
    assert call_program(source, "f", [[]]).values == (wanted,)


@pytest.mark.parametrize(
    "value",
    ["[(1, 2)]", "{1: 2}", "np.arange(3)", "[{1}]", "Fraction(1, 3)", "1j", "iter([1])", "b'a'", "object()", "f"],
)
def test_values_that_nothing_in_json_equals_are_named(value: str) -> None:
    source = f"import numpy as np\nfrom fractions import Fraction\ndef f(): return {value}"
    ended = call_program(source, "f", [[]])
    assert ended.values == ()
    assert "not JSON serializable" in ended.why


def test_each_call_has_its_own_seconds() -> None:
    source = "import time\ndef f(s):\n    end = time.process_time() + s\n    while time.process_time() < end: pass"
    assert call_program(source, "f", [[0.6], [0.6], [0.0]], limits=SMALL).finished
    assert call_program(source, "f", [[0.6], [9.0]], limits=SMALL).why == "took more than 1 s"


def test_who_waits_for_its_own_thread_does_not_sleep() -> None:
    source = "import threading, time\ndef busy():\n    while time.process_time() < 2: pass\n"
    source += "thread = threading.Thread(target=busy); thread.start(); thread.join()"
    assert run_program(source, limits=Limits(sleep_s=1)).finished


def test_what_does_not_read_its_input_is_no_trouble() -> None:
    assert ended("print('x' * 300_000)", stdin="y" * 3_000_000).finished


def test_a_process_without_standard_streams_runs_programs() -> None:
    script = "import os; os.closerange(0, 3)\nfrom ktbench.eval.sandbox.running import run_program\n"
    script += "ended = run_program('print(input())', stdin='yes')\nos._exit(0 if ended.stdout == 'yes\\n' else 1)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_powers_are_said() -> None:
    words = " ".join(sandbox_mechanisms())
    assert "Landlock" in words and "seccomp" in words


def test_limits_refuse() -> None:
    with pytest.raises(ValueError, match="limits.seconds=0: must be 1 or above"):
        Limits(seconds=0)
