"""Masks leave no row that sees nothing, and the kernels that run attention are noted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from ktbench.engine.cuda.attention import AttentionWatch, seeing_mask, set_up_attention
from tests.engine.families.plain import build
from tests.engine.tiny import tiny_model


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 3))
def test_rows_of_padding_see_everything_and_others_what_they_saw(paddings: list[int], queries: int, seen: int) -> None:
    positions = seen + queries
    inside = torch.arange(positions) >= torch.tensor(paddings)[:, None]
    sizes = {"batch_size": len(paddings), "q_length": queries, "kv_length": positions, "q_offset": seen}
    mask = seeing_mask(**sizes, attention_mask=inside, allow_is_causal_skip=False)
    usual = sdpa_mask(**sizes, attention_mask=inside, allow_is_causal_skip=False)
    assert mask is not None
    assert usual is not None
    assert mask.any(dim=-1).all()
    sees = usual.any(dim=-1)
    assert torch.equal(mask[sees], usual[sees])
    assert mask[~sees].all()
    query = torch.randn(len(paddings), 2, queries, 8)
    keys = torch.randn(len(paddings), 2, positions, 8)
    assert scaled_dot_product_attention(query, keys, keys, attn_mask=mask).isfinite().all()


def test_where_no_mask_is_needed_there_is_none() -> None:
    sizes = {"batch_size": 1, "q_length": 4, "kv_length": 4}
    assert (seeing_mask(**sizes) is None) == (sdpa_mask(**sizes) is None)


@pytest.fixture
def as_before() -> Iterator[None]:
    mask, cudnn = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"], torch.backends.cuda.cudnn_sdp_enabled()
    yield
    ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", mask)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


@pytest.mark.usefixtures("as_before")
@torch.inference_mode()
def test_networks_get_such_masks_and_no_kernels_of_cudnn() -> None:
    set_up_attention()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    masks: list[torch.Tensor] = []
    network = build(tiny_model("qwen3_30b_a3b"))

    class Masks(AttentionWatch):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is scaled_dot_product_attention and kwargs["attn_mask"] is not None:
                masks.append(kwargs["attn_mask"])
            return super().__torch_function__(function, types, args, kwargs)

    inside = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with Masks() as watch:
        network(input_ids=torch.arange(12).view(2, 6), attention_mask=inside)
    assert masks
    assert all(mask.any(dim=-1).all() for mask in masks)
    assert len(watch.chosen) == 1
    assert "cuDNN" not in watch.chosen
