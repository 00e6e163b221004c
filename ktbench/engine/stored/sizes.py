"""Sizes of tensors that follow from the configuration in every family, against those in headers; without PyTorch.

The network, which decides on all shapes, is built when a checkpoint is loaded; what is checked here is known before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ktbench.spec.shape import MoEShape

Size = tuple[int, ...]
ANY = -1  # of a dimension that depends on the family
_IN_LAYER = r"(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.\d+\."


@dataclass(frozen=True, slots=True)
class _Rule:
    """Tensors by their whole names, and the sizes that they may have."""

    names: re.Pattern[str]
    allowed: tuple[Size, ...]

    def holds(self, size: Size) -> bool:
        """Whether a tensor of this size is one of these."""
        return any(
            len(size) == len(one) and all(want in (ANY, held) for want, held in zip(one, size, strict=True))
            for one in self.allowed
        )


def require_sizes(sizes: Mapping[str, Size], shape: MoEShape, where: str) -> None:
    """Raise ValueError for the first tensor of a folder or of a GGUF file, by name, that cannot be of this model.

    A stack of experts may be held by rows or by columns. A tensor of another name is not judged.
    """
    rules = tuple(_rules(shape))
    for name, size in sizes.items():
        rule = next((rule for rule in rules if rule.names.fullmatch(name)), None)
        if rule is not None and not rule.holds(size):
            allowed = " or ".join(map(_shown, rule.allowed))
            raise ValueError(f"{where}: tensor {name} is {_shown(size)}, the model needs {allowed}")


def _shown(size: Size) -> str:
    return f"({', '.join('any' if one == ANY else str(one) for one in size)})"


def _rules(shape: MoEShape) -> Iterator[_Rule]:
    experts, hidden, ffn = shape.experts, shape.hidden, shape.expert_ffn
    up, down = (ffn, hidden), (hidden, ffn)
    for names, *allowed in (
        (r"(?:model\.)?embed_tokens\.weight|lm_head\.weight|token_embd\.weight|output\.weight", (shape.vocab, hidden)),
        (rf"(?:{_IN_LAYER}input_layernorm|model\.norm|blk\.\d+\.attn_norm|output_norm)\.weight", (hidden,)),
        (rf"(?:{_IN_LAYER}self_attn\.[qkv]_proj|blk\.\d+\.attn_[qkv])\.weight", (ANY, hidden)),
        (rf"(?:{_IN_LAYER}self_attn\.o_proj|blk\.\d+\.attn_output)\.weight", (hidden, ANY)),
        # Some routers score more than the routed experts.
        (rf"(?:{_IN_LAYER}(?:mlp|block_sparse_moe)\.(?:gate|router)|blk\.\d+\.ffn_gate_inp)\.weight", (ANY, hidden)),
        (rf"{_IN_LAYER}\w+\.experts\.\d+\.(?:gate_proj|up_proj|w1|w3)\.weight", up),
        (rf"{_IN_LAYER}\w+\.experts\.\d+\.(?:down_proj|w2)\.weight", down),
        (rf"{_IN_LAYER}\w+\.experts\.gate_up_proj", (experts, 2 * ffn, hidden), (experts, hidden, 2 * ffn)),
        (rf"{_IN_LAYER}\w+\.experts\.down_proj", (experts, *down), (experts, *up)),
        (r"blk\.\d+\.ffn_(?:gate|up)_exps\.weight", (experts, *up)),
        (r"blk\.\d+\.ffn_down_exps\.weight", (experts, *down)),
    ):
        yield _Rule(re.compile(names), tuple(allowed))
