"""What is kept of the library's log, and what is read from the library, on a stand-in for it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ktbench.engine.protocol import Unsupported
from ktbench.peers.llama.api import LlamaLibrary

DEBUG, INFO, WARN, ERROR, CONTINUED = 1, 2, 3, 4, 5


def library(**changes: Any) -> LlamaLibrary:
    """A library that does nothing but what a test needs."""
    calls = ModuleType("llama_cpp")
    names = {
        "__version__": "0.3.36",
        "LLAMA_LOAD_MODE_MMAP": 1,
        "LLAMA_FLASH_ATTN_TYPE_ENABLED": 1,
        "llama_get_memory": None,
        "llama_backend_init": lambda: None,
        "llama_log_callback": lambda callback: callback,
        "llama_log_set": lambda callback, _data: setattr(calls, "callback", callback),
    }
    vars(calls).update({name: value for name, value in (names | changes).items() if value != "missing"})
    return LlamaLibrary(calls)


def receive(library: LlamaLibrary, *lines: tuple[int, str]) -> str:
    for level, text in lines:
        library.calls.callback(level, text.encode(), None)
    return library.log.last_lines


def test_the_last_warnings_and_errors_are_kept() -> None:
    lines = receive(
        library(), (DEBUG, "one"), (INFO, "two"), *((WARN, f"w{n}\n") for n in range(4)), (ERROR, "broken\n")
    )
    assert lines == "w2; w3; broken"


def test_continued_lines_belong_to_the_one_before() -> None:
    lines = receive(library(), (INFO, "loading "), (CONTINUED, "..."), (ERROR, "no tensor "), (CONTINUED, "blk.0"))
    assert lines == "no tensor blk.0"


def test_repeated_and_forgotten_lines_are_left_out() -> None:
    opened = library()
    assert receive(opened, (ERROR, "again"), (ERROR, "again")) == "again"
    opened.log.forget()
    assert opened.log.last_lines == "no reason given"


def test_text_that_is_no_utf8_is_kept_readable() -> None:
    opened = library()
    opened.calls.callback(ERROR, b"bad \xff name", None)
    assert opened.log.last_lines == "bad � name"


def test_no_memory_is_another_error() -> None:
    opened = library()
    receive(opened, (ERROR, "alloc_tensor_range: failed to allocate CPU buffer of size 1"))
    assert isinstance(opened.log.failure("no context", RuntimeError), MemoryError)
    opened.log.forget()
    receive(opened, (ERROR, "key not found"))
    failure = opened.log.failure("cannot load", ValueError)
    assert type(failure) is ValueError
    assert str(failure) == "cannot load: key not found"


def test_flags_that_are_off_are_left_out() -> None:
    info = b"CPU : SSE3 = 1 | AVX512 = 1 | AMX_INT8 = 0 | OPENMP = 1 | "
    assert library(llama_print_system_info=lambda: info).flags == "CPU SSE3 AVX512 OPENMP"


def test_an_older_library_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"llama-cpp-python 0.3.36 lacks LLAMA_LOAD_MODE_MMAP: nox -s peers"):
        library(LLAMA_LOAD_MODE_MMAP="missing")
