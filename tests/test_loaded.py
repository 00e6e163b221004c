"""Forked children are as those that an interpreter starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("loaded_children")


def test_pipes_environment_folder_and_exit_code_are_those_asked_for(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdin.read(), os.environ['A'], os.getcwd(), os.getsid(0) == os.getpid()); exit(3)"
    done = subprocess.run(
        [sys.executable, "-c", code], input="said", env={"A": "b"}, cwd=tmp_path, start_new_session=True, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, f"said b {tmp_path} True\n", "")


def test_passed_files_keep_their_numbers() -> None:
    reading, writing = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), b'said')"
    with subprocess.Popen([sys.executable, "-c", code, str(writing)], pass_fds=(writing,)) as child:
        os.close(writing)
        assert os.read(reading, 9) == b"said"
        assert os.read(reading, 9) == b""
    os.close(reading)
    assert child.returncode == 0


def test_it_is_a_child_of_this_process_that_signals_end() -> None:
    code = "import os, signal; print(os.getppid(), flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) == os.getpid()
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM


def test_a_traceback_and_a_sentence_are_exit_code_1() -> None:
    for code, said in (("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit('said')", "said\n")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert said in done.stderr


def test_other_programs_are_started_as_ever() -> None:
    assert subprocess.run(["echo", "said"], capture_output=True, text=True, check=True).stdout == "said\n"
