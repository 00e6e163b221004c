"""What running one expert costs on either role, and Fiddler's rule that decides by it.

Kamahori et al., Fiddler: CPU-GPU Orchestration for Fast Inference of Mixture-of-Experts Models, ICLR 2025.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass

# More tokens than any call gives one expert.
_MOST_TOKENS = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Seconds that one expert takes, as Fiddler models them.

    The host takes `host_call_s` + tokens · `host_token_s`; the device `copy_s` for the weights and `device_s` for any
    number of tokens. Raises ValueError for seconds that are negative or not finite.
    """

    host_call_s: float
    host_token_s: float
    copy_s: float
    device_s: float

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name}={seconds}: must be 0 or more seconds")

    def host_s(self, tokens: int) -> float:
        """Seconds of the host for so many tokens."""
        return self.host_call_s + tokens * self.host_token_s

    def told(self) -> str:
        """The costs and what follows from them, in a sentence."""
        first = copied_from(self)
        then = "is never copied" if first is None else f"is copied from {first} tokens on"
        return (
            f"an expert takes {_ms(self.host_call_s)} and {_ms(self.host_token_s)} a token on the host, "
            f"{_ms(self.copy_s)} to copy and {_ms(self.device_s)} to run on the device, and {then}"
        )


def runs_at_device(tokens: int, costs: Costs) -> bool:
    """Whether copying and running an expert on the device is faster: cpu_lat(s) > gpu_lat(s) + transfer_lat().

    That is Fiddler's comparison for an expert that does not live on the device; one without tokens runs nowhere.
    """
    return tokens > 0 and costs.host_s(tokens) > costs.device_s + costs.copy_s


def copied_from(costs: Costs) -> int | None:
    """The fewest tokens with which an expert runs on the device; None where it never does."""
    tokens = range(1, _MOST_TOKENS + 1)
    first = bisect_left(tokens, True, key=lambda some: runs_at_device(some, costs))
    return tokens[first] if first < len(tokens) else None


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
