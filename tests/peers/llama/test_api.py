"""What is kept of the library's log, and what is read from the library, on a stand-in for it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ktbench.engine.protocol import Unsupported
from ktbench.peers.llama.api import LlamaLibrary

DEBUG, INFO, WARN, ERROR, CONTINUED = 1, 2, 3, 4, 5


def library(**changes: Any) -> LlamaLibrary:
    """A library that does nothing but what is asked of it here."""
    calls = ModuleType("llama_cpp")
    names = {
        "__version__": "0.3.36",
        "LLAMA_LOAD_MODE_MMAP": 1,
        "LLAMA_FLASH_ATTN_TYPE_ENABLED": 1,
        "llama_get_memory": None,
        "llama_backend_init": lambda: None,
        "llama_log_callback": lambda heard: heard,
        "llama_log_set": lambda heard, _data: setattr(calls, "heard", heard),
    }
    vars(calls).update({name: value for name, value in (names | changes).items() if value != "missing"})
    return LlamaLibrary(calls)


def hear(heard: LlamaLibrary, *lines: tuple[int, str]) -> str:
    for level, text in lines:
        heard.calls.heard(level, text.encode(), None)
    return heard.log.last_lines


def test_the_last_warnings_and_errors_are_kept() -> None:
    said = hear(library(), (DEBUG, "one"), (INFO, "two"), *((WARN, f"w{n}\n") for n in range(4)), (ERROR, "broken\n"))
    assert said == "w2; w3; broken"


def test_continued_lines_belong_to_the_one_before() -> None:
    said = hear(library(), (INFO, "loading "), (CONTINUED, "..."), (ERROR, "no tensor "), (CONTINUED, "blk.0"))
    assert said == "no tensor blk.0"


def test_repeated_and_forgotten_lines_are_left_out() -> None:
    heard = library()
    assert hear(heard, (ERROR, "again"), (ERROR, "again")) == "again"
    heard.log.forget()
    assert heard.log.last_lines == "no reason given"


def test_text_that_is_no_utf8_is_kept_readable() -> None:
    heard = library()
    heard.calls.heard(ERROR, b"bad \xff name", None)
    assert heard.log.last_lines == "bad � name"


def test_no_memory_is_told_apart() -> None:
    heard = library()
    hear(heard, (ERROR, "alloc_tensor_range: failed to allocate CPU buffer of size 1"))
    assert isinstance(heard.log.failure("no context", RuntimeError), MemoryError)
    heard.log.forget()
    hear(heard, (ERROR, "key not found"))
    failure = heard.log.failure("cannot load", ValueError)
    assert type(failure) is ValueError
    assert str(failure) == "cannot load: key not found"


def test_flags_that_are_off_are_left_out() -> None:
    info = b"CPU : SSE3 = 1 | AVX512 = 1 | AMX_INT8 = 0 | OPENMP = 1 | "
    assert library(llama_print_system_info=lambda: info).flags == "CPU SSE3 AVX512 OPENMP"


def test_an_older_library_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"llama-cpp-python 0.3.36 lacks LLAMA_LOAD_MODE_MMAP: nox -s peers"):
        library(LLAMA_LOAD_MODE_MMAP="missing")
