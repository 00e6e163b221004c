"""The few required functions of llama.cpp's C interface (llama.h), as a thin wrapper."""

from __future__ import annotations

import ctypes
import importlib
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.protocol import Unsupported
from ktbench.peers.llama.script import Script, TokenLayout
from ktbench.peers.llama.settings import LlamaSettings
from ktbench.resources import in_checkout

_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level of ggml.h
_KEPT_LINES = 3
# The most recent of the names used here.
_NEWEST = ("LLAMA_LOAD_MODE_MMAP", "llama_get_memory", "LLAMA_FLASH_ATTN_TYPE_ENABLED")
_NO_MEMORY = ("failed to allocate", "unable to allocate")


class LlamaLog:
    """Keeps llama.cpp quiet, and its last warnings and errors for error messages."""

    def __init__(self, library: ModuleType) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._level = 0
        self._callback = library.llama_log_callback(self._receive)  # called as long as the library lives
        library.llama_log_set(self._callback, None)

    def _receive(self, level: int, text: bytes, _data: object) -> None:
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
        """Drop all lines so far."""
        self._lines.clear()

    @property
    def last_lines(self) -> str:
        """The last lines joined, without repetitions."""
        return "; ".join(dict.fromkeys(line for line in self._lines if line)) or "no reason given"

    def failure(self, what: str, kind: type[Exception]) -> Exception:
        """The error to raise after a failure, with the last lines: MemoryError if they are about memory."""
        lines = self.last_lines
        is_memory = any(words in lines for words in _NO_MEMORY)
        return (MemoryError if is_memory else kind)(f"{what}: {lines}")


class LlamaLibrary:
    """llama_cpp, quiet. Raises Unsupported if it is older than the functions called here."""

    _loaded: LlamaLibrary | None = None

    def __init__(self, calls: ModuleType) -> None:
        self.calls = calls
        if missing := [name for name in _NEWEST if not hasattr(calls, name)]:
            lacks = ", ".join(missing)
            newer = in_checkout("nox -s peers")
            raise Unsupported(f"llama-cpp-python {self.version} lacks {lacks}: {newer} installs a newer one")
        self.log = LlamaLog(calls)
        self.calls.llama_backend_init()

    @classmethod
    def load(cls) -> LlamaLibrary:
        """The instance of this process, which can have only one log. Raises ImportError if it is not installed."""
        if cls._loaded is None:
            cls._loaded = cls(importlib.import_module("llama_cpp"))
        return cls._loaded

    @property
    def version(self) -> str:
        """The version of the package llama-cpp-python."""
        return str(self.calls.__version__)

    @property
    def flags(self) -> str:
        """Its build features, the names that are on in llama_print_system_info: `CPU AVX512 OPENMP REPACK`."""
        words = self.calls.llama_print_system_info().decode().replace(":", "= 1 |").split("|")
        pairs = (word.split("=") for word in words if "=" in word)
        return " ".join(name.strip() for name, value in pairs if value.strip() != "0")

    @property
    def most_sequences(self) -> int:
        """Sequences that a context may have."""
        return int(self.calls.llama_max_parallel_sequences())


class Model:
    """Weights of a GGUF file, mapped from it; weights that llama.cpp repacks for its kernels are in memory.

    Raises ValueError in one line for a file that llama.cpp does not load, MemoryError if it does not fit.
    """

    def __init__(self, library: LlamaLibrary, path: Path) -> None:
        self.library = library
        params = library.calls.llama_model_default_params()
        params.load_mode = library.calls.LLAMA_LOAD_MODE_MMAP
        params.n_gpu_layers = 0
        library.log.forget()
        self._handle = library.calls.llama_model_load_from_file(str(path).encode(), params)
        if not self._handle:
            raise library.log.failure(f"{path}: llama.cpp cannot load it", ValueError)

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return int(self.library.calls.llama_model_n_layer(self._handle))

    @property
    def vocab(self) -> int:
        """Number of tokens, equal to the number of logits."""
        calls = self.library.calls
        return int(calls.llama_vocab_n_tokens(calls.llama_model_get_vocab(self._handle)))

    @property
    def description(self) -> str:
        """Architecture and type of the weights: `qwen3moe 30B.A3B Q8_0`."""
        text = ctypes.create_string_buffer(128)
        self.library.calls.llama_model_desc(self._handle, text, len(text))
        return text.value.decode()

    def open(self, script: Script, settings: LlamaSettings) -> Context:
        """A new context on these weights. Raises MemoryError if it does not fit, RuntimeError otherwise."""
        return Context(self.library, self._handle, script, (script.workload.batch, self.vocab), settings)

    def close(self) -> None:
        """Release the weights; contexts must be closed already."""
        self.library.calls.llama_model_free(self._handle)


class Context:
    """A memory of keys and values in F16, and llama.cpp's own clock."""

    def __init__(
        self, library: LlamaLibrary, model: Any, script: Script, logits: tuple[int, int], settings: LlamaSettings
    ) -> None:
        """A context for the handle of a model, with room for the calls of `script`; `logits` is [sequences, vocab]."""
        self._calls, self._log, self._shape = library.calls, library.log, logits
        self._log.forget()
        self._handle = self._calls.llama_init_from_model(model, _params(self._calls, script, settings))
        if not self._handle:
            raise self._log.failure("llama.cpp has no context", RuntimeError)
        self._memory = self._calls.llama_get_memory(self._handle)

    def use(self, threads: int) -> None:
        """Set the number of threads for all later calls."""
        self._calls.llama_set_n_threads(self._handle, threads, threads)

    def decode(self, batch: Batch) -> None:
        """Process a call's tokens. Raises RuntimeError with llama.cpp's last messages if that fails."""
        if code := self._calls.llama_decode(self._handle, batch.call):
            raise self._log.failure(f"llama_decode gave {code}", RuntimeError)

    def finish(self) -> None:
        """Wait until everything is computed."""
        self._calls.llama_synchronize(self._handle)

    def logits(self) -> NDArray[np.float32]:
        """[sequences, vocab] of the last call, copied."""
        return np.ctypeslib.as_array(self._calls.llama_get_logits(self._handle), self._shape).copy()

    def forget(self) -> None:
        """Empty the memory: clears its table of positions without touching keys or values."""
        self._calls.llama_memory_clear(self._memory, False)

    def keep(self, positions: int) -> bool:
        """Keep only this many positions of every sequence; False if the memory cannot go back."""
        return bool(self._calls.llama_memory_seq_rm(self._memory, -1, positions, -1))

    def restart_clock(self) -> None:
        """Restart the count of `own_s`."""
        self._calls.llama_perf_context_reset(self._handle)

    @property
    def own_s(self) -> float:
        """Seconds in calls by llama.cpp's own clock, from the beginning of a call to the end of the wait for it."""
        times = self._calls.llama_perf_context(self._handle)
        return float(times.t_p_eval_ms + times.t_eval_ms) / 1e3  # calls of more than one token, and of one

    def close(self) -> None:
        """Release the memory."""
        self._calls.llama_free(self._handle)


class Batch:
    """A call's arguments for llama.cpp, in the memory of the layout."""

    def __init__(self, library: LlamaLibrary, layout: TokenLayout) -> None:
        calls, count = library.calls, len(layout)
        self._held = layout  # the memory behind the pointers
        self._ones = np.ones(count, np.int32)
        first = layout.sequences.ctypes.data
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * count)(
            *(ctypes.cast(first + 4 * i, ctypes.POINTER(ctypes.c_int32)) for i in range(count))
        )
        self.call = calls.llama_batch(
            n_tokens=count,
            token=_pointer(layout.tokens, ctypes.c_int32),
            pos=_pointer(layout.positions, ctypes.c_int32),
            n_seq_id=_pointer(self._ones, ctypes.c_int32),
            seq_id=self._sequences,
            logits=_pointer(layout.wanted, ctypes.c_int8),
        )


def _pointer(values: NDArray[Any], kind: Any) -> Any:
    return values.ctypes.data_as(ctypes.POINTER(kind))


def _params(calls: ModuleType, script: Script, settings: LlamaSettings) -> Any:
    """Each sequence has its own part of the memory, as llama.h advises for sequences without a shared prefix."""
    params = calls.llama_context_default_params()
    params.n_ctx, params.n_seq_max = script.cells, script.workload.batch
    params.n_batch, params.n_ubatch = script.call_tokens, min(settings.ubatch, script.call_tokens)
    params.n_threads = params.n_threads_batch = settings.threads
    params.flash_attn_type = int(settings.flash)
    params.type_k = params.type_v = calls.GGML_TYPE_F16
    params.kv_unified = False
    params.op_offload = params.offload_kqv = False
    params.no_perf = False
    return params
