"""How scores and their changes are written: percent with one place, points and changes with their sign."""

from __future__ import annotations

from ktbench.report.text import DASH, number
from ktbench.results.scores import Change, Estimate, ScoreVerdict

SURE_MARK = "*"  # beside a change that is beyond noise
_LEAST_P = 1e-4


def score_text(score: Estimate | None) -> str:
    """`93.1 ± 0.7`, in percent with the standard error; a question mark where one task has a single question."""
    if score is None:
        return DASH
    return f"{100 * score.mid:.1f} ± {'?' if score.se is None else f'{100 * score.se:.1f}'}"


def score_interval_text(score: Estimate | None) -> str:
    """`93.1 ± 0.7 [91.5, 94.4]`: with its 95 % interval, where there is one."""
    if score is None or score.low is None or score.high is None:
        return score_text(score)
    return f"{score_text(score)} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def change_text(change: Estimate | None) -> str:
    """`-0.5 [-1.2, +0.3]`: a hundred times the difference with its 95 % interval."""
    if change is None:
        return DASH
    ends = "" if change.low is None or change.high is None else f" [{signed(change.low)}, {signed(change.high)}]"
    return f"{signed(change.mid)}{ends}"


def signed(value: float) -> str:
    """A share in percent with its sign; nothing is 0.0."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def flips_text(change: Change | None) -> str:
    """`-14/+8`: so many questions score lower, so many higher."""
    return DASH if change is None else f"-{change.flips.lost}/+{change.flips.gained}"


def p_text(change: Change | None) -> str:
    """Two significant digits, `<0.0001` below that."""
    if change is None:
        return DASH
    return f"<{_LEAST_P:.4f}" if change.flips.p < _LEAST_P else f"{change.flips.p:.2g}"


def relative_text(change: Change | None) -> str:
    """`-3.4*`: the change in percent alone, marked where it is beyond noise."""
    if change is None or change.relative is None:
        return DASH
    mark = "" if change.verdict is ScoreVerdict.NONE_SHOWN else SURE_MARK
    return f"{signed(change.relative.mid)}{mark}"


def spread_text(value: Estimate, scale: float = 1.0) -> str:
    """`12.3 [11.8, 12.9]`: four significant digits with the 95 % interval, where there is one."""
    if value.low is None or value.high is None:
        return number(value.mid * scale)
    return f"{number(value.mid * scale)} [{number(value.low * scale)}, {number(value.high * scale)}]"


def error_text(value: Estimate, scale: float = 1.0) -> str:
    """`0.0123 ± 0.0004`: three significant digits with the standard error, where there is one."""
    return number(value.mid * scale, 3) + ("" if value.se is None else f" ± {number(value.se * scale, 2)}")
