"""Exported files of every family, run by llama.cpp, against Transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.forms import is_experts, read_form
from ktbench.engine.gguf import export
from ktbench.engine.gguf.facts import Entry, Groups, Rope
from ktbench.engine.gguf.families import Family, GgufType, expert_tensors, family_of
from tests.engine.gguf.files import numbers, tensors, written
from tests.engine.gguf.tinies import FAMILIES, restless, saved

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# What llama.cpp computes. F16 rounds activations least, so it is held tightest; a flipped choice of experts moves some
# tokens far, so that the median is held, and of the most probable tokens nearly all.
TOKENS = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(3))
KL: dict[GgufType, float] = {"F16": 1e-5, "BF16": 5e-4, "Q8_0": 2e-2}
TOP_1: dict[GgufType, float] = {"F16": 0.95, "BF16": 0.9, "Q8_0": 0.8}


def logits(network: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = network.float()(TOKENS[None]).logits[0]
    return found


def median_kl(own: Tensor, seen: Tensor) -> float:
    """Of the tokens' Kullback-Leibler divergences, in nats."""
    log_p, log_q = own.double().log_softmax(-1), seen.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).median().item()


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    peer()
    network = restless(name)
    model = saved(network, tmp_path / "checkpoint")
    own = logits(network)
    assert own.std() > 1, "logits that tell tokens apart"
    for kind, most in KL.items():
        seen = llama_logits(written(model, tmp_path, kind), TOKENS, 256)
        assert median_kl(own, seen) < most, kind
        assert (own.argmax(-1) == seen.argmax(-1)).double().mean() >= TOP_1[kind], kind


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_reads_the_blocks_that_were_written(name: str, tmp_path: Path) -> None:
    """Against Transformers on the very numbers that the file stands for, put back through the tables."""
    peer()
    network = restless(name)
    model = saved(network, tmp_path / "checkpoint")
    file = written(model, tmp_path, "Q4_0")
    put_back(network, {key: torch.tensor(numbers(one)) for key, one in tensors(file).items()})
    own, seen = logits(network), llama_logits(file, TOKENS, 256)
    assert median_kl(own, seen) < KL["Q8_0"]
    assert (own.argmax(-1) == seen.argmax(-1)).double().mean() >= TOP_1["Q8_0"]


def put_back(network: PreTrainedModel, held: dict[str, Tensor]) -> None:
    """Overwrite a network's float32 weights with those of a file."""
    config = network.config.to_dict()
    family = family_of(config)
    network.float()
    for key, tensor in network.state_dict().items():
        if ".mlp.experts." not in key:
            mapped = family.mapped(key)
            tensor.copy_(mapped.join([held[name] for name in mapped.names], config))
    for name, module in network.named_modules():
        if is_experts(module):
            form = read_form(module)
            places = expert_tensors(name, form)
            for i in range(form.experts):
                expert = form.matrices(module, i)
                for one in ("gate", "up", "down"):
                    getattr(expert, one).data.copy_(held[places[one][0]][i])


def without_row_changes(family: Family) -> Family:
    return replace(family, changes={})


def without_change(module: str, family: Family) -> Family:
    return replace(family, changes={key: change for key, change in family.changes.items() if key != module})


def without(kind: type[Entry], family: Family) -> Family:
    return replace(family, entries=tuple(one for one in family.entries if not isinstance(one, kind)))


def with_swapped_norms(family: Family) -> Family:
    first, second = (family.modules[key] for key in ("input_layernorm", "post_attention_layernorm"))
    return replace(family, modules={**family.modules, "input_layernorm": second, "post_attention_layernorm": first})


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("mixtral_8x7b", without_row_changes),
        ("mixtral_8x7b", partial(without, Rope)),
        ("deepseek_v3", partial(without, Groups)),
        ("gpt_oss_20b", partial(without, Rope)),
        ("glm_4_5_air", with_swapped_norms),
        ("qwen3_next_80b_a3b", partial(without_change, "model.norm")),
        ("qwen3_next_80b_a3b", partial(without_change, "self_attn.q_norm")),
        ("qwen3_next_80b_a3b", partial(without, Rope)),
        ("minimax_m2", partial(without, Rope)),
    ],
)
def test_tables_that_are_wrong_would_be_noticed(
    name: str, mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer()
    network = restless(name)
    model = saved(network, tmp_path / "checkpoint")
    monkeypatch.setattr(export, "family_of", lambda config: mutate(family_of(config)))
    seen = llama_logits(written(model, tmp_path, "F16"), TOKENS, 256)
    assert median_kl(logits(network), seen) > KL["F16"]


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
    loading = llama.llama_model_default_params()
    loading.use_extra_bufts = False  # ggml's AMX buffers crash on matrices as small as these
    model = llama.llama_model_load_from_file(str(file).encode(), loading)
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
