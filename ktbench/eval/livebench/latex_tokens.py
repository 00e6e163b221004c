"""Short LaTeX formulae, unified and cut into tokens."""

from __future__ import annotations

import re

LONGEST = 2000  # characters; no answer in exact form comes near

_SILENT = r"\\(?:(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|q?quad)(?![a-zA-Z])|[ ,;:!])"
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname\*?)\s*\{([^{}]*)\}")
_WORDS = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\cdot": "*", r"\times": "*", r"\div": "/"}
_BRACKETS = {r"\{": "(", r"\}": ")", "[": "(", "]": ")", r"\lvert": "|", r"\rvert": "|", r"\vert": "|"}
_SIGNS = str.maketrans({"−": "-", "×": "*", "·": "*", "λ": r"\lambda ", "π": r"\pi ", "~": " ", "$": " "})
_NAMES = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|sec|csc|cot|exp|log|ln"
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|[-+*/^(){}|_]")


def tokens(formula: str) -> list[str]:
    """The tokens of a formula. Raises ValueError for one that is too long or holds what is no mathematics."""
    if len(formula) > LONGEST:
        raise ValueError(f"formula of more than {LONGEST} characters")
    found: list[str] = []
    at, unified = 0, unify(formula)
    while at < len(unified):
        if not (token := _TOKEN.match(unified, at)):
            raise ValueError(f"formula with {unified[at]!r}")
        found.append(token[0])
        at = token.end()
        at += len(unified[at:]) - len(unified[at:].lstrip())
    return found


def unify(formula: str) -> str:
    r"""One way to write what LaTeX writes in several: no spacing, `\frac` only, `*` for products, one kind of bracket.

    Of an equation the right side stays, a constant of integration at the end goes.
    """
    text = formula.translate(_SIGNS).replace("{,}", "")
    text = re.sub(r"\\sqrt\s*\[([^][]*)\]", r"\\root{\1}", text)
    text = _WRAPPER.sub(lambda found: _word(found[1]), re.sub(_SILENT, " ", text))
    for old, new in (_WORDS | _BRACKETS).items():
        text = re.sub(re.escape(old) + (r"(?![a-zA-Z])" if old[-1].isalpha() else ""), new.replace("\\", r"\\"), text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.split(r"\\approx|≈", text)[0].rsplit("=", 1)[-1]
    return re.sub(r"\+\s*[Cc]\s*$", "", text.strip().removesuffix(".")).strip()


def _word(said: str) -> str:
    """What stood in an upright word: a function's name becomes a command, all else stays."""
    return rf"\{said.strip()} " if re.fullmatch(_NAMES, said.strip()) else f" {said} "
