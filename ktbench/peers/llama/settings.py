"""llama.cpp's own settings: where tuning begins, and the ways it goes from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LEAST_UBATCH, _USUAL_UBATCH, _MOST_UBATCH = 64, 512, 2048

# Changes to the best settings so far, one after the other for as long as they make nothing slower.
Walk = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Threads, the most tokens that are computed together (n_ubatch), and whether attention is the fused one."""

    threads: int
    ubatch: int = _USUAL_UBATCH
    flash: bool = True

    @property
    def needs_context(self) -> tuple[int, bool]:
        """What a context is made with; threads may change under it."""
        return self.ubatch, self.flash

    def __str__(self) -> str:
        return f"threads {self.threads}, ubatch {self.ubatch}, flash attention {'on' if self.flash else 'off'}"


def first_settings(cores: int, call_tokens: int) -> Settings:
    """A thread on every core, and llama.cpp's usual ubatch where a call, of the prompt or a step, has the tokens."""
    return Settings(threads=cores, ubatch=min(_USUAL_UBATCH, _most_ubatch(call_tokens)))


def walks(cores: int, step_tokens: int) -> tuple[Walk, ...]:
    """Larger and smaller ubatch where a step has the tokens for either; flash attention off; fewer threads."""
    threads = [{"threads": count} for count in fewer_threads(cores)]
    flash = [{"flash": False}]
    most = _most_ubatch(step_tokens)
    sizes = [_LEAST_UBATCH << power for power in range(6) if _LEAST_UBATCH << power <= most]
    larger = [{"ubatch": size} for size in sizes if size > _USUAL_UBATCH]
    smaller = [{"ubatch": size} for size in sizes[::-1] if size < min(_USUAL_UBATCH, most)]
    return larger, smaller, flash, threads


def fewer_threads(cores: int) -> tuple[int, ...]:
    """Counts below `cores`, downwards: three quarters of them, then powers of two."""
    powers = {1 << power for power in range(cores.bit_length())}
    return tuple(sorted((count for count in powers | {cores * 3 // 4} if 0 < count < cores), reverse=True))


def _most_ubatch(tokens: int) -> int:
    """The smallest size that takes so many tokens at once."""
    needed = 1 << (tokens - 1).bit_length()
    return max(_LEAST_UBATCH, min(_MOST_UBATCH, needed))
