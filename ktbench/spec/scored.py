"""What answers were worth: one fact for each answer, and one that closes a task of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.spec.evidence import Evidence
from ktbench.spec.outcome import Outcome
from ktbench.spec.record import Provenance

SCORE = "score"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One answer of one cell and its worth.

    `question` is the same for every cell that was asked the same. `metric` is `score` (0 to 1) where answers are
    graded, else what is measured: `nll_nats`, `kl_nats`, `top1`; values are means over `weight` tokens then. None is
    an answer that cannot be graded here, `why` says why. `tokens` counts the new tokens of a generated answer, None
    where none was generated.
    """

    cell: str
    task: str
    question: str
    value: float | None
    metric: str = SCORE
    weight: float = 1.0
    sample: int = 0
    tokens: int | None = None
    answer: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The end of one task of one cell: its answers count from here on.

    `cached` of its `requests` had been answered before by the same engine, and are not in `evidence`, `took_s` and the
    token counts. `setting` says how the questions were put where that is not plain from the spec.
    """

    cell: str
    label: str
    task: str
    outcome: Outcome
    provenance: Provenance
    code_id: str
    env_id: str
    started: str
    why: str = ""
    took_s: float = 0.0
    questions: int = 0
    requests: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    evidence: tuple[Evidence, ...] = ()
    setting: str = ""
