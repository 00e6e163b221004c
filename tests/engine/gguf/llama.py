"""Logits of llama.cpp, one thread, everything outside of its matrices in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

_F32 = 0  # ggml.h
_NO_FLASH = 0


def peer() -> Any:
    """The package, or the reason why the test is skipped."""
    llama = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    llama.llama_backend_init()
    llama.llama_log_set(_QUIET.setdefault("log", llama.llama_log_callback(lambda *_: None)), None)
    return llama


_QUIET: dict[str, Any] = {}  # what C calls has to stay


def llama_logits(file: Path, tokens: Tensor, vocab: int) -> Tensor:
    """[T, V] float32 of one sequence of token ids [T]."""
    llama = peer()
    model = llama.llama_model_load_from_file(str(file).encode(), llama.llama_model_default_params())
    assert model, f"llama.cpp does not load {file.name}"
    wanted = llama.llama_context_default_params()
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = 256
    wanted.n_threads = wanted.n_threads_batch = 1
    wanted.type_k = wanted.type_v = _F32
    wanted.flash_attn_type = _NO_FLASH
    context = llama.llama_init_from_model(model, wanted)
    try:
        return _decoded(llama, context, tokens.tolist(), vocab)
    finally:
        llama.llama_free(context)
        llama.llama_model_free(model)


def _decoded(llama: Any, context: Any, ids: list[int], vocab: int) -> Tensor:
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama.llama_decode(context, batch) == 0
    rows = [llama.llama_get_logits_ith(context, i) for i in range(len(ids))]
    logits = np.stack([np.ctypeslib.as_array(row, shape=(vocab,)).copy() for row in rows])
    llama.llama_batch_free(batch)
    return torch.from_numpy(logits)
