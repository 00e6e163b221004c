"""Masks leave no row that sees nothing, and the kernels that run attention are noted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ktbench.engine.cuda.attention import (
    LONG,
    AttentionWatch,
    MaskedAttention,
    attend,
    attend_in_parts,
    seeing_mask,
    set_up_attention,
)
from ktbench.engine.decode.gather import PART
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
    usual = ALL_ATTENTION_FUNCTIONS["sdpa"]
    yield
    ALL_ATTENTION_FUNCTIONS.register("sdpa", usual)
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


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31), st.booleans())
def test_a_long_context_in_parts_is_attended_to_as_a_whole(
    batch: int, groups: int, rows: int, parts: int, seed: int, scaled: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    positions, scaling = parts * PART, 0.3 if scaled else None
    query = torch.randn(batch, groups * rows, 1, 16, generator=draw, dtype=torch.bfloat16)
    keys = torch.randn(batch, groups, positions, 16, generator=draw, dtype=torch.bfloat16)
    values = torch.randn(batch, groups, positions, 8, generator=draw, dtype=torch.bfloat16)
    mask = torch.rand(batch, 1, 1, positions, generator=draw) < 0.5
    mask[..., 0] = True
    seen = attend_in_parts(query, keys, values, mask, scaling)
    exact = scaled_dot_product_attention(
        query.double(), keys.double(), values.double(), attn_mask=mask, scale=scaling, enable_gqa=True
    )
    assert seen.shape == (batch, 1, groups * rows, 8)
    assert (seen[:, 0].double() - exact[:, :, 0]).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize(("tokens", "positions", "masked"), [(1, LONG, True), (1, LONG, False), (1, LONG + 1, True)])
def test_only_one_token_with_a_mask_takes_products(tokens: int, positions: int, masked: bool) -> None:
    query, keys = torch.randn(2, 4, tokens, 8), torch.randn(2, 2, positions, 8)
    mask = torch.ones(2, 1, tokens, positions, dtype=torch.bool) if masked else None
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    with AttentionWatch() as watch:
        seen, _ = attend(module, query, keys, keys, mask, scaling=0.5)
    exact = scaled_dot_product_attention(query, keys, keys, scale=0.5, enable_gqa=True).transpose(1, 2)
    assert torch.allclose(seen, exact, atol=1e-4)
    assert ("products" in " ".join(watch.chosen)) == (masked and positions % PART == 0)


def test_rooms_of_long_contexts_are_whole_parts() -> None:
    attention = MaskedAttention()
    assert [attention.make_room(room) for room in (1, LONG - 1, LONG, LONG + 1)] == [1, LONG - 1, LONG, LONG + PART]
