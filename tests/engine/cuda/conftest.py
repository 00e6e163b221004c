"""A stand-in for the CUDA runtime, and the process with the asynchronous device, both made when first needed.

The stand-in has a queue of host functions, and pins below a tebibyte.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loaded import Loader

ROOT = Path(__file__).parents[3]

_SOURCE = """
#include <stddef.h>
#include <unistd.h>
typedef void (*host_function)(void *);
static struct { host_function function; void *data; } queue[16];
static int queued, begun;

int cudaLaunchHostFunc(void *stream, host_function function, void *data) {
  if (stream != (void *)0x5eed) return 400;
  if (queued == 16) return 2;
  queue[queued].function = function;
  queue[queued++].data = data;
  return 0;
}
const char *cudaGetErrorString(int code) { return code == 400 ? "invalid resource handle" : "out of memory"; }
void stand_in_run(void) {
  for (begun = 0; begun < queued; ++begun) queue[begun].function(queue[begun].data);
  queued = 0;
}

static size_t pinned;
static int last;
static int is_read_only(void *at) {
  int ends[2], denied = 0;
  char held;
  if (pipe(ends)) return 0;
  if (write(ends[1], at, 1) == 1) denied = read(ends[0], at, 1) != 1;
  close(ends[0]), close(ends[1]);
  return denied;
}
int cudaHostRegister(void *at, size_t bytes, unsigned flags) {
  if ((flags && flags != 8) || bytes >= (size_t)1 << 40 || (!flags && is_read_only(at))) return last = 1;
  pinned += bytes;
  return 0;
}
int cudaHostUnregister(void *at) { return at ? 0 : (last = 1); }
int cudaGetLastError(void) { int code = last; last = 0; return code; }
size_t stand_in_pinned(void) { return pinned; }
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Makes a library of this name of C source."""

    def make(source: str, name: str) -> Path:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler for a stand-in of CUDA's libraries (install gcc)")
        folder = tmp_path_factory.mktemp("library") / "stand in" / "lib"
        folder.mkdir(parents=True)
        (folder / "source.c").write_text(source)
        library = folder / name
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "source.c")], check=True)
        return library

    return make


@pytest.fixture(scope="session")
def stand_in(compiled: Callable[[str, str], Path]) -> Path:
    """The library; its one stream is 0x5eed, and `stand_in_run` does what was put into it."""
    return compiled(_SOURCE, "libcudart.so.99")


@pytest.fixture
def run_queue(stand_in: Path) -> ctypes.CDLL:
    """The stand-in itself: `run_queue.stand_in_run()`."""
    return ctypes.CDLL(str(stand_in))


class AsyncEngines(dict[str, dict[str, Any]]):
    """What cases of `async_engine`, `MODEL:CASE`, give in its process, each computed when first asked for."""

    def __init__(self, log: Path, loader: Loader) -> None:
        super().__init__()
        self._log, self._loader = log, loader
        self._process: subprocess.Popen[str] | None = None

    def __missing__(self, case: str) -> dict[str, Any]:
        self[case] = json.loads(self._answer(case))
        return self[case]

    def _answer(self, case: str) -> str:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None and self._process.stdout is not None
        print(case, file=self._process.stdin, flush=True)
        if answer := self._process.stdout.readline():
            return answer
        self.end()  # the next case has another process
        pytest.fail(f"{case}: {self._log.read_text()}")

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.engine.cuda.async_engine"]
        with self._log.open("w") as log, self._loader.stands_in():
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="session")
def async_engines(tmp_path_factory: pytest.TempPathFactory, loader: Loader) -> Iterator[AsyncEngines]:
    engines = AsyncEngines(tmp_path_factory.mktemp("async_engines") / "log", loader)
    yield engines
    engines.end()
