"""How often one layer is held, so that its weights come from memory and not from the cache when their turn comes."""

from __future__ import annotations

# Layers that small are those of models made for trying things out: they may stay in the cache.
_MOST_COPIES = 64


def layer_copies(expert_bytes: int, cache_bytes: int) -> int:
    """Copies of a layer of which one round reads more than 1.25 times the last-level cache, at least 1, at most 64.

    `expert_bytes` are those of all the routed experts of one layer as they are held, `cache_bytes` those of the
    last-level cache (0 where it is not known). Raises ValueError where a layer has no bytes.
    """
    if expert_bytes < 1:
        raise ValueError(f"expert_bytes={expert_bytes}: must be at least 1")
    return min(5 * cache_bytes // (4 * expert_bytes) + 1, _MOST_COPIES)
