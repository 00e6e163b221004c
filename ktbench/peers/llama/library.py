"""The loaded library of llama.cpp: quiet, and asked for its last words where something went wrong."""

from __future__ import annotations

import importlib
from collections import deque
from types import ModuleType

from ktbench.engine.protocol import Unsupported

_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level of ggml.h
_KEPT_LINES = 3
# The names used here that came last.
_NEWEST = ("LLAMA_LOAD_MODE_MMAP", "llama_get_memory", "LLAMA_FLASH_ATTN_TYPE_ENABLED")
_NO_MEMORY = ("failed to allocate", "unable to allocate")


class Log:
    """Keeps llama.cpp quiet, and its last warnings and errors for whoever has to say what went wrong."""

    def __init__(self, library: ModuleType) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._level = 0
        self._callback = library.llama_log_callback(self._heard)  # called for as long as the library lives
        library.llama_log_set(self._callback, None)

    def _heard(self, level: int, text: bytes, _data: object) -> None:
        words = text.decode(errors="replace")
        if level != _CONTINUED:
            self._level = level
        if self._level in (_WARN, _ERROR):
            self._keep(words, begins=level != _CONTINUED)

    def _keep(self, words: str, *, begins: bool) -> None:
        if begins or not self._lines:
            self._lines.append(words.strip())
        else:
            self._lines[-1] = f"{self._lines[-1]} {words.strip()}"

    def forget(self) -> None:
        """From now on only what follows counts."""
        self._lines.clear()

    @property
    def said(self) -> str:
        """The last lines in one, what is repeated left out."""
        return "; ".join(dict.fromkeys(line for line in self._lines if line)) or "it does not say why"

    def failure(self, what: str, kind: type[Exception]) -> Exception:
        """What to raise where something has failed, with the last lines: MemoryError where they are about that."""
        said = self.said
        is_memory = any(words in said for words in _NO_MEMORY)
        return (MemoryError if is_memory else kind)(f"{what}: {said}")


class Library:
    """llama_cpp, quiet. Raises Unsupported where it is older than what is called here."""

    _loaded: Library | None = None

    def __init__(self, calls: ModuleType) -> None:
        self.calls = calls
        if missing := [name for name in _NEWEST if not hasattr(calls, name)]:
            lacks = ", ".join(missing)
            raise Unsupported(f"llama-cpp-python {self.version} lacks {lacks}: nox -s peers installs a newer one")
        self.log = Log(calls)
        self.calls.llama_backend_init()

    @classmethod
    def load(cls) -> Library:
        """The one of this process, where there can be only one log. Raises ImportError where it is not installed."""
        if cls._loaded is None:
            cls._loaded = cls(importlib.import_module("llama_cpp"))
        return cls._loaded

    @property
    def version(self) -> str:
        """Of the package llama-cpp-python."""
        return str(self.calls.__version__)

    @property
    def flags(self) -> str:
        """What it was built for, by the names of llama_print_system_info that are on: `CPU AVX512 OPENMP REPACK`."""
        words = self.calls.llama_print_system_info().decode().replace(":", "= 1 |").split("|")
        pairs = (word.split("=") for word in words if "=" in word)
        return " ".join(name.strip() for name, value in pairs if value.strip() != "0")

    @property
    def most_sequences(self) -> int:
        """Sequences that a context may have."""
        return int(self.calls.llama_max_parallel_sequences())
