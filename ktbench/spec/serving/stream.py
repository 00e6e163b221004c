"""The stream of requests that every configuration of a serving benchmark gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from ktbench.spec.errors import check_ranges, number_at_least

Arrivals = Literal["closed", "poisson", "gamma", "trace"]
Start = Literal["cold", "warm", "ram", "disk", "restarted"]
SAMPLED = "sampled"  # how arms say that tokens are drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class SloSpec:
    """What a request must keep to count as goodput: seconds to its first token, and between tokens on average.

    None: as long as it takes.
    """

    ttft_s: Annotated[float | None, Meta(description="goodput: seconds to the first token")] = None
    itl_s: Annotated[float | None, Meta(description="goodput: seconds between tokens")] = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "itl_s"):
            _above(f"workload.stream.slo.{name}", getattr(self, name), 0)

    @property
    def is_set(self) -> bool:
        """Whether there is anything to keep."""
        return self.ttft_s is not None or self.itl_s is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSpec:
    """Requests, when they arrive, and how long they are; drawn once from `workload.seed`, whatever serves them.

    closed: `concurrency` users, each of whom sends its next request when the last is answered. poisson: independent
    arrivals, `rate` a second. gamma: gaps of a gamma distribution of the shape `burstiness`: 1 is poisson, below 1
    arrivals come in bursts. trace: those of the file `trace`, times `time_scale`.

    Prompts have `workload.prompt` tokens of their own, answers `answer`: the means of log-normal distributions where
    `prompt_sigma` and `answer_sigma`, the standard deviations of their logarithms, are above 0, and no more than
    `longest_prompt` and `longest_answer` (None: any length). With a `trace` its first `requests` requests have its
    lengths, whatever the arrivals. `shared_prefix` tokens in front of every prompt are the same. With several `turns`
    requests form conversations: a prompt is what was said so far, with the answers that were given, and new tokens.

    What the prefix cache has at the begin of a replay: nothing (cold), or what a replay of the same stream left, where
    it left it (warm), moved to memory (ram) or to the disk (disk), or what is left of it after the server was started
    anew (restarted).

    Tokens are the likeliest at `temperature` 0, else drawn, each request by a seed of its own.
    """

    arrivals: Annotated[Arrivals, Meta(description="when requests come")] = "closed"
    concurrency: Annotated[int, Meta(ge=1, description="with closed: users")] = 4
    rate: Annotated[float, Meta(description="with poisson and gamma: requests per second")] = 1.0
    burstiness: Annotated[float, Meta(description="with gamma: below 1 requests come in bursts")] = 1.0
    requests: Annotated[int, Meta(ge=1, description="requests in all")] = 32
    answer: Annotated[int, Meta(ge=1, description="mean tokens of an answer")] = 32
    prompt_sigma: Annotated[float, Meta(description="spread of prompt lengths (log-normal)")] = 0.0
    answer_sigma: Annotated[float, Meta(description="spread of answer lengths (log-normal)")] = 0.0
    longest_prompt: Annotated[int, Meta(ge=1, description="tokens at most")] | None = None
    longest_answer: Annotated[int, Meta(ge=1, description="tokens at most")] | None = None
    shared_prefix: Annotated[int, Meta(description="tokens that all prompts begin with")] = 0
    turns: Annotated[int, Meta(ge=1, description="requests of a conversation")] = 1
    trace: Annotated[str | None, Meta(description="a file of lengths and arrivals")] = None
    time_scale: Annotated[float, Meta(description="factor on the times of a trace")] = 1.0
    cache: Annotated[Start, Meta(description="what the prefix cache begins with")] = "cold"
    temperature: Annotated[float, Meta(description="0: the likeliest tokens; above: drawn ones")] = 0.0
    slo: SloSpec = field(default_factory=SloSpec)

    def __post_init__(self) -> None:
        check_ranges(self, "workload.stream")
        for name in ("shared_prefix", "prompt_sigma", "answer_sigma", "temperature"):
            number_at_least(_key(name), getattr(self, name), 0)
        for name in ("rate", "burstiness", "time_scale"):
            _above(_key(name), getattr(self, name), 0)
        if self.burstiness != 1 and self.arrivals != "gamma":
            raise ValueError(f"{_key('burstiness')}={self.burstiness}: is for {_key('arrivals')}=gamma")
        if self.arrivals == "trace" and self.trace is None:
            raise ValueError(f"{_key('arrivals')}=trace: name its file in {_key('trace')}")
        if self.time_scale != 1 and self.arrivals != "trace":
            raise ValueError(f"{_key('time_scale')}={self.time_scale}: is for {_key('arrivals')}=trace")
        if self.requests % self.turns:
            raise ValueError(
                f"{_key('requests')}={self.requests}: must be a multiple of {_key('turns')}={self.turns}, "
                "as all conversations have as many turns"
            )

    @property
    def is_open(self) -> bool:
        """Whether requests arrive by the clock, whether or not others are answered."""
        return self.arrivals != "closed"

    @property
    def summary(self) -> str:
        """`32 requests of 4 users`, `32 requests, 1.5 a second (poisson)`."""
        of = {
            "closed": f" of {self.concurrency} user{'' if self.concurrency == 1 else 's'}",
            "trace": " as they arrived in a trace",
        }.get(self.arrivals, f", {self.rate:g} a second ({self.arrivals})")
        return f"{self.requests} request{'' if self.requests == 1 else 's'}{of}"

    def require_blocks(self, blocks: int) -> None:
        """Raises ValueError for more blocks than a sample of each can be taken of.

        In a closed loop answers may end all at once: a block has a request of every user at least.
        """
        least = 1 if self.is_open else self.concurrency
        if self.requests < blocks * least:
            users = "" if self.is_open else f" times {_key('concurrency')}={self.concurrency}"
            raise ValueError(
                f"{_key('requests')}={self.requests}: must be at least workload.steps={blocks}{users}, "
                "a sample is of a request of every user"
            )


def _key(name: str) -> str:
    return f"workload.stream.{name}"


def _above(key: str, value: float | None, least: float) -> None:
    """Raises ValueError for a number that is not above `least`; None is allowed."""
    if value is not None and not least < value < float("inf"):
        raise ValueError(f"{key}={value}: must be above {least}")
