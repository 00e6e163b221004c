"""LiveBench's rules for the mathematics tasks: row, answer → score."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tests.eval.livebench.rules.boxes import any_tags, box, doubled, drop, tags
from tests.eval.livebench.rules.words import distance

Row = Mapping[str, Any]


def one_sign(answer: str, wanted: str) -> bool:
    found = tags(answer)
    if not found or len(set(found[-1])) != 1:
        return False
    return found[-1][0].lower() == wanted.lower()


def math_comp(row: Row, answer: str) -> float:
    truth = row["truth"]
    if row["subtask"].startswith("aime"):
        return float(one_sign(answer, truth) or truth in answer[-50:])
    return float(is_letter(row, answer, truth))


def is_letter(row: Row, answer: str, truth: str) -> bool:
    if one_sign(answer, truth) or truth * 4 in answer:
        return True
    answer = doubled(answer)
    inside = box(answer)
    if inside is not None and drop(inside, "\\text{", "}", "\\").lower() == truth.lower():
        return True
    option = choice(row["prompt"], truth)
    if option in answer[-(20 + len(option)) :]:
        return True
    line = answer.strip().split("\n")[-1]
    if line.strip().replace("*", "").lower() == truth.lower():
        return True
    if "(" not in line or ")" not in line:
        return False
    return bool(line.split("(")[1].split(")")[0].lower() == truth.lower())


def choice(prompt: str, letter: str) -> str:
    """An option runs from its bold letter to the next wide space or dollar sign, on one line."""
    text = ""
    for name, found in re.findall(r"\\textbf\{\(([A-E])\)\s?\}(.*?)(?:\\qquad|\$)", prompt):
        if name == letter:
            text = found.strip()
    return (text or "FAILURE").strip("$").strip("~")


NO = "no number"


def read(items: list[str]) -> list[int | str]:
    """Items as numbers; a list without any number is none."""
    numbers: list[int | str] = []
    for item in items:
        try:
            numbers.append(int(item))
        except ValueError:
            numbers.append(NO)
    return [] if set(numbers) <= {NO} else numbers


def digits(text: str) -> tuple[str, int]:
    """The first run of digits, and how many other signs there are."""
    begin = 0
    while begin < len(text) and not text[begin].isdigit():
        begin += 1
    end = begin
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[begin:end], len(text) - (end - begin)


def order_of(answer: str) -> list[int | str]:
    numbers: list[int | str] = []
    low = answer.lower()
    if "answer:" in low:
        lines = low.strip().split("\n")
        at = [number for number, line in enumerate(lines) if "answer:" in line][-1]
        text = drop(lines[at].split("answer:")[1], "**", ".").strip()
        if text == "" and at + 1 < len(lines):
            text = drop(lines[at + 1], "answer:", "**", ".").strip()
        items = [item.strip().split(" ")[-1] for item in text.split(",")]
        numbers = read([drop(item, "$", "{", "}", "\\", "boxed", "<", ">") for item in items])
    if not numbers and "\\boxed" in answer:
        inside = box(answer)
        text = answer if inside is None else inside
        numbers = read([item.strip() for item in drop(text, "\\text{", "}", "\\").strip().split(",")])
    if not numbers:
        last = answer.strip().lower().split("\n")[-1]
        numbers = read([run for run in (digits(item)[0] for item in last.split(",")) if run.strip()])
    if numbers:
        return numbers
    for at, item in enumerate(low.split("answer:")[-1].split(",")):
        run, others = digits(item.strip())
        if run not in ("", "₂"):
            numbers.append(int(run))
        if at > 0 and others > 0:
            break
    return numbers


def olympiad(row: Row, answer: str) -> float:
    wanted = [int(number) for number in row["truth"].split(",")]
    given = order_of(answer)
    return 1 - distance(given, wanted) / max(len(given), len(wanted))  # type: ignore[arg-type]


def amps_hard(row: Row, answer: str) -> float:
    """Two formulae are the same where they are equal, or a model says that they are equal or negatives of each other.

    What it would say is known of the formulae of a row. Of any other it would say no.
    """
    answer = drop(answer, "+C", "+ C", "+ c", "+c")
    answer = doubled(answer).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    answer = drop(answer, "\\left", "\\right", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\,", "\\;", "\n")
    answer = answer.replace("\\cdot", "*")
    truth = drop(row["truth"], "\\left", "\\right").replace(" ^", "^").replace("\\ ", "*")
    formula = box(answer)
    if formula is None and answer.count("$") > 1:
        end = answer.rfind("$")
        if answer[end - 1] == "$":
            end -= 1
        formula = answer[answer.rfind("$", 0, end) + 1 : end]
        if "=" not in formula:
            formula = formula.split("\\quad \\text{or} \\quad")[-1]
    if formula is None:
        answer = answer[:-1] if answer.endswith(".") else answer
        return float(answer[-len(truth) :] == truth)
    known = [*row["same"], *row["negative"]]
    return float(seen(formula) in {seen(amps_form(one)) for one in known})


def amps_form(formula: str) -> str:
    formula = formula.replace("\\dfrac", "\\frac").replace("\\cdot", "*")
    return drop(formula, "\\,", "\\left", "\\right")


def seen(formula: str) -> str:
    """A formula as the model gets it: the right side; `\\text{…}` ends at the first brace, whatever it holds.

    What a reader does not see is left out: fonts, braces around all of it, blanks, a full stop.
    """
    formula = formula.rsplit("=", maxsplit=1)[-1]
    for name in ("text", "textbf", "overline"):
        formula = re.sub(r"\\" + name + r"\{(.*?)\}", r"\1", formula)
    formula = re.sub(r"\\(?:mathbf|boxed)\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", formula)
    formula = drop(formula, " ", "$").removesuffix(".")
    return formula[1:-1] if formula[:1] + formula[-1:] == "{}" else formula


def integrals_with_game(row: Row, answer: str) -> float:
    """The solution, then the box, has the truth's value; or the truth is among the last 200 signs."""
    truth = Fraction(row["truth"])
    for found in (lambda: (any_tags(answer) or [""])[-1], lambda: box(doubled(answer)) or ""):
        value = worth(compact(found().strip()), row)
        if value is not None and abs(value - truth) < 1e-5:
            return 1.0
    return float(compact(row["truth"]) in compact(answer[-200:]))


def compact(text: str) -> str:
    text = text.strip().replace("\\\\", "\\").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = drop(text, "\\left", "\\right", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr").replace("\\cdot", "*")
    return drop(text, "\\,", "\\;", "\n", " ")


def worth(text: str, row: Row) -> Fraction | None:
    """The value of a text: a quotient of two whole numbers, a number, a fraction that it begins with, else LaTeX.

    What SymPy makes of the LaTeX among the row's contents stands in the row.
    """
    if "/" in text and "\\" not in text and text.count("/") == 1:
        above, below = text.split("/")
        try:
            return Fraction(int(above), int(below))
        except ZeroDivisionError:
            return None
        except ValueError:
            pass
    try:
        return Fraction(text).limit_denominator(10_000_000)
    except (ValueError, ZeroDivisionError):
        pass
    if begin := re.match(r"\\frac\{(\d+)\}\{(\d+)\}", text):
        return Fraction(int(begin.group(1)), int(begin.group(2)))
    values = {compact(latex): value for latex, value in row["latex"].items()}
    return Fraction(values[text]) if text in values else None
