"""llama.cpp's own settings: the starting point of tuning, and its variations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ktbench.peers.tuning import Walk, thread_counts, vary

_LEAST_UBATCH, _USUAL_UBATCH, _MOST_UBATCH = 64, 512, 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaSettings:
    """Threads, the most tokens computed together (n_ubatch), and whether flash attention is used."""

    threads: int
    ubatch: int = _USUAL_UBATCH
    flash: bool = True

    @property
    def context(self) -> tuple[int, bool]:
        """The settings of a context; threads may change within it."""
        return self.ubatch, self.flash

    def __str__(self) -> str:
        return f"threads {self.threads}, ubatch {self.ubatch}, flash attention {'on' if self.flash else 'off'}"


def first_settings(cores: int, call_tokens: int) -> LlamaSettings:
    """A thread on every core, and llama.cpp's default ubatch, if a call of the prompt or a step has as many tokens."""
    return LlamaSettings(threads=cores, ubatch=min(_USUAL_UBATCH, _most_ubatch(call_tokens)))


def walks(cores: int, step_tokens: int) -> tuple[Walk[Any], ...]:
    """Larger and smaller ubatch, if a step has enough tokens; flash attention off; fewer threads."""
    most = _most_ubatch(step_tokens)
    sizes = [_LEAST_UBATCH << power for power in range(6) if _LEAST_UBATCH << power <= most]
    return (
        vary("ubatch", [size for size in sizes if size > _USUAL_UBATCH]),
        vary("ubatch", [size for size in sizes[::-1] if size < min(_USUAL_UBATCH, most)]),
        vary("flash", [False]),
        vary("threads", thread_counts(cores)[1:]),
    )


def _most_ubatch(tokens: int) -> int:
    """The smallest size that takes this many tokens at once."""
    needed = 1 << (tokens - 1).bit_length()
    return max(_LEAST_UBATCH, min(_MOST_UBATCH, needed))
