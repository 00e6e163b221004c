"""GGUF files byte by byte, as ggml's docs/gguf.md describes them: small ones, and wrong ones."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Number of a type, weights of a block, its bytes.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q8_0": (8, 32, 34), "Q4_0": (2, 32, 18)}
TYPES |= {"IQ4_NL": (20, 32, 18), "MXFP4": (39, 32, 17)}
TYPES |= {
    "Q4_1": (3, 32, 20),
    "Q4_K": (12, 256, 144),
    "Q5_0": (6, 32, 22),
    "Q6_K": (14, 256, 210),
    "IQ1_S": (19, 256, 50),
    "IQ2_S": (22, 256, 82),
    "IQ2_XXS": (16, 256, 66),
    "IQ3_S": (21, 256, 110),
    "I32": (26, 1, 4),
    "unheard of": (999, 1, 1),
}
_NUMBERS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
_STRING, _ARRAY = 8, 9

METADATA: Mapping[str, Any] = {
    "general.architecture": "qwen3moe",
    "qwen3moe.block_count": 2,
    "qwen3moe.context_length": 512,
    "qwen3moe.embedding_length": 64,
    "qwen3moe.feed_forward_length": 96,
    "qwen3moe.attention.head_count": 4,
    "qwen3moe.attention.head_count_kv": 2,
    "qwen3moe.attention.key_length": 16,
    "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3moe.rope.freq_base": 1e6,
    "qwen3moe.expert_count": 8,
    "qwen3moe.expert_used_count": 2,
    "qwen3moe.expert_feed_forward_length": 32,
    "tokenizer.ggml.tokens": [f"token {i}" for i in range(256)],
    "tokenizer.ggml.scores": [0.5, -1.0],
    "tokenizer.ggml.add_bos_token": True,
}
TENSORS = (("early", "F32", (3,)), ("output.weight", "Q8_0", (256, 64)), ("late", "Q4_0", (2, 1, 32)))


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file as it should be, by default. Tensors are (name, type, shape with rows first)."""

    metadata: Mapping[str, Any] = field(default_factory=lambda: METADATA)
    tensors: Sequence[tuple[str, str, tuple[int, ...]]] = TENSORS
    magic: bytes = b"GGUF"
    version: int = 3
    gap: int = 0

    def head(self) -> bytes:
        """All before the data. `gap` moves every tensor on."""
        parts = [self.magic, struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))]
        parts += [text(key) + value(one) for key, one in self.metadata.items()]
        offset = self.gap
        for name, kind, shape in self.tensors:
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            parts.append(text(name) + sizes + struct.pack("<IQ", TYPES[kind][0], offset))
            offset = _aligned(offset + tensor_bytes(kind, shape))
        return b"".join(parts)

    def whole(self) -> bytes:
        """Head and data, which are all ones, up to the end of the last tensor."""
        data = b""
        for _, kind, shape in self.tensors:
            data = data.ljust(_aligned(len(data)), b"\0") + b"\1" * tensor_bytes(kind, shape)
        return self.head().ljust(_aligned(len(self.head())), b"\0") + data


def tensor_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Of a tensor."""
    _, weights, block_bytes = TYPES[kind]
    return math.prod(shape) // weights * block_bytes


def text(word: str) -> bytes:
    """A string."""
    return struct.pack("<Q", len(word.encode())) + word.encode()


def value(one: Any) -> bytes:
    """A value after its kind."""
    if isinstance(one, list):
        items = [value(item) for item in one]
        return struct.pack("<I", _ARRAY) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    if isinstance(one, str):
        return struct.pack("<I", _STRING) + text(one)
    kind, form = _NUMBERS[type(one)]
    return struct.pack(f"<I{form}", kind, one)


def _aligned(offset: int) -> int:
    return math.ceil(offset / 32) * 32
