"""Questions of the tasks whose answers are words, numbers and formulae: the true content, and what resembles it.

Of each question the contents end with a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Question = tuple[Mapping[str, Any], Sequence[str], Sequence[str]]  # row, contents, answers as they are

LATER, FIRST = "2024-11-25", "2024-06-24"
OPTIONS = (
    r"How far? $\textbf{(A) }20\qquad\textbf{(B)}~\frac{9}{25}\qquad\textbf{(C) }1,250 \qquad"
    r"\textbf{(D) }26\\ \textbf{(E) }\sqrt3$ Answer with a letter, five times, as EEEEE."
)


def listed(truth: str, wrong: str, separator: str = ", ") -> tuple[str, ...]:
    """A list's contents: in other cases, orders, lengths and with other separators."""
    items = truth.split(separator)
    short, turned = items[1:], items[::-1]
    spoilt = [*items[:-1], wrong]
    forms = [separator.join(one) for one in (items, short, turned, spoilt, [*items, wrong], [wrong, *items])]
    joined = [between.join(items) for between in (",", " , ", "; ", " -> ", ",\n", "\n", " and ", " ")]
    cased = [truth.upper(), truth.title(), truth.capitalize(), truth.replace("-", " "), truth.replace(" ", "")]
    quoted = [separator.join(f"“{item}”" for item in items), f"{items[0]} is it", wrong]
    return tuple(dict.fromkeys([*forms, *joined, *cased, *quoted]))


def _lies(truth: str) -> Question:
    special = [
        f"**{truth}** and **no**", f"it may be yes, no, yes; {truth}", f"{truth}; yes, no, yes; {truth}",
        "**yes** **no**", "**Yes**, **No**. **Unknown**", "yes, yes, yes, yes", "**" + truth.replace(", ", "** **") + "**",
        *[f"<solution>{one}</solution>" for one in ("yes", "no, no", "unknown, yes", f"it is {truth} then")],
    ]  # fmt: skip
    return {"truth": truth, "released": FIRST}, listed(truth, "no, no, no"), special


def _lies_in_parts(truth: str) -> Question:
    special = [f"<solution>{truth.rpartition(', ')[0]}</solution>", r"\boxed{\text{yes}, \text{no}, \text{yes}}"]
    return {"truth": truth, "released": "2025-04-02"}, listed(truth, "yes"), special


def _zebra(truth: str, released: str) -> Question:
    items = [item.strip() for item in truth.split(",")]
    special = ["\n".join(f"{i}. <solution>{item}</solution>" for i, item in enumerate(items)),
               "\n".join(f"<solution>{item}</solution>" for item in [*items, "x"]),
               " ".join(f"***{item}***" for item in items), "***" + truth + "***", "***fantasy*** is it",
               f"<solution>position {truth}</solution>", f"<solution>position-{truth}</solution>",
               *[f"***{word}***" for word in ("3", "three", "Three", "1", "one", "10", "ten", "movies", "d&b")],
               "it is 3", "it is three!", "it is three'", "it is 3)", r"\boxed{writing}", "‘writing’", "writing…",
               "fantasy", "police officer", "police-officer", "The Police-Officer.", "***police officer***"]  # fmt: skip
    return {"truth": truth, "released": released}, listed(truth, "opera"), special


def _spatial(truth: str, *contents: str) -> Question:
    special = [f"**{truth}**, **a**, **b**, **c**", f"**x** **{truth}** **y** **z**", rf"\boxed{{\text{{{truth}}}}}",
               "**two tetrahedra**", "**a regular tetrahedron**", "**equilateral triangle**", "**a square**",
               "**circle square triangle and more**", "**a square pyramid, surely**", "**it is a triangle, no doubt**"]  # fmt: skip
    return {"truth": truth, "released": "2024-07-26"}, (truth, truth.upper(), f"{truth}.", *contents, "7"), special


def _mind(truth: str) -> Question:
    contents = (truth, truth.upper(), f"the {truth}!", truth.replace(" ", "_"), truth.replace(" ", ", "),
                f"in the {truth}; or the attic", f"{truth.split()[0]}", f"not {truth}", "red basket")  # fmt: skip
    special = [f"The answer is {truth}\nI hope so", f"I hope so\nthe answer is the {truth}", f"The answer is\n{truth}",
               f"<solution>{truth}\n</solution> and </solution>", f"answer: Answer: {truth}", f"{truth}?!"]  # fmt: skip
    return {"truth": truth, "released": "2025-11-25"}, contents, special


def _sudoku(truth: str) -> Question:
    grid = "\n".join(truth[at : at + 4] for at in range(0, len(truth), 4))
    contents = (truth, grid, " ".join(truth), grid.replace("\n", "\r\n"), truth[:-1], truth + "1", truth[::-1], "," .join(truth),
                truth.replace("1", "１"), truth.replace("4", "."), f"{truth} ", grid.replace("\n", "\n\n"), "1" * len(truth))  # fmt: skip
    return {"truth": truth, "released": "2025-11-25"}, contents, [f"<solution>{truth}</solution>" + truth]


def _walk(x: int, y: int) -> Question:
    contents = (f"({x}, {y})", f"{x},{y}", f"[{x}, {y}]", f"( {x} ,{y} )", f"x = {x}, y = {y}", f"({x}.0, {y}.0)", f"({y}, {x})",
                f"{x} {y}", f"({x}, {y}, 0)", f"(0, 0) to ({x}, {y})", f"({x}, {y}) from (0, 0)", f"+{x}, +{y}", f"0{x}, {y}",
                f"({x}; {y})", f"\\left({x}, {y}\\right)", f"−{abs(x)}, {y}", f"1, 2 ({x}, {y})", "(0, 0)")  # fmt: skip
    return {"truth": [x, y], "released": "2025-12-23"}, contents, ["<solution>" + "9" * 5000 + ", 1</solution>"]


def _choice(letter: str) -> Question:
    contents = (letter * 5, letter * 4, letter * 3, letter, letter.lower() * 5, letter.lower(), f"({letter})", f"{letter})",
                f"**{letter}**", f"({letter.lower()})", f"{letter} ", "BBBBB" if letter != "B" else "CCCCC")  # fmt: skip
    special = [f"So the answer is ({letter}).", f"it is\n({letter})", f"it is ({letter})\nbye", f"(see above) ({letter})",
               f"\\boxed{{\\textbf{{({letter})}}}}", "the distance is 1,250 miles", "20 miles", r"it is \frac{9}{25}", "FAILURE",
               r"it is \sqrt3", "26", "1,250" + " and so on" * 5, f"<solution>{letter.lower() * 5}</solution>",
               f"<solution>{letter}{letter.lower()}</solution>", f"<solution>{letter}.</solution>", f"){letter}(", f"**({letter})**",
               f"\\boxed{{{letter.lower()}}}", f"\\boxed{{\\mathrm{{{letter}}}}}", f"\\boxed{{({letter})}}"]  # fmt: skip
    return {"truth": letter, "released": FIRST, "prompt": OPTIONS, "subtask": "amc_12a_2023"}, contents, special


def _integer(truth: str) -> Question:
    contents = (truth, truth.lstrip("0"), f"{truth}.", f"1{truth}", f"{truth}1", " ".join(truth), truth + " and so on" * 5, "444")
    special = [f"<solution>{truth}</solution>" + " and so on" * 6, f"<solution>{truth[0]}</solution>" + " and so on" * 6]
    return {"truth": truth, "released": FIRST, "prompt": "n = ?", "subtask": "aime_i_2024"}, contents, special


def _proof(truth: str) -> Question:
    contents = listed(truth, "99", ",") + tuple(", ".join(f"{left}{n}{right}" for n in truth.split(","))
                for left, right in (("<expression ", ">"), ("$", "$"), ("**", "**"), ("", "."), ("no. ", ""), ("", " each")))  # fmt: skip
    contents = (*contents, "none", "1_0, 2", "2², 3", "₂, 3", "+1, -2", "NO ANSWER")
    special = [f"Answer: 1\nAnswer: {truth}\nDone: 7", f"ANSWER: {truth}", f"answer:\n\n{truth}", "Answer: none\n" + truth,
               f"answer: {truth}\nanswer: none", f"Answer: none \\boxed{{{truth}}}", f"answer: x, y\n\\boxed{{x}}\nfirst {truth}",
               f"by 7, 8\n{truth}.", f"{truth}\nas shown", "answer: " + truth + " answer: 5", "answer: " + "8" * 5000 + ", 1",
               f"answer: {truth} \\boxed{{1}}", "\\boxed{x} no digits", "the answer: a, b3, c4x, d5", "²", "answer: ²"]  # fmt: skip
    return {"truth": truth, "released": FIRST, "subtask": "imo"}, contents, special


def _game(truth: str, *contents: str) -> Question:
    special = [f"you win {truth} in the end", f"{truth}" + " and so on" * 25, f"<solution>1{truth}</solution>", "<solution>x</solution>",
               f"<solution>\\boxed{{{truth}}}</solution>", f"it is {truth} <solution>0</solution>", "<solution>1/0</solution>",
               "<solution>nan</solution>", "<solution>oo</solution>", f"<solution>{truth}</solution>" + " x" * 200]  # fmt: skip
    latex = {"15^3": "3375", r"\frac34": "3/4", r"-\frac{3}{4}": "-3/4", r"(\frac{3}{4})": "3/4", r"{\frac{6}{8}}": "3/4"}  # as SymPy reads these
    return {"truth": truth, "released": "2026-01-08", "latex": latex}, (truth, *contents, "x"), special


def _class(truth: str) -> Question:
    contents = (truth, truth.upper(), truth.replace(".", " "), truth.replace(".", "_"), f"{truth} (of things)", f"not {truth}",
                f"x{truth}", truth[1:], truth[:-1], f"Name: {truth}", "Colour")  # fmt: skip
    special = [f"\\boxed{{year}} {truth}", f"The class of this column is: {truth}", f"{truth}, since it is", f"\\boxed{{{truth}}} {truth}"]
    return {"truth": truth, "released": FIRST}, contents, special


def _typo(truth: str) -> Question:
    half = len(truth) // 2
    contents = (truth, truth.upper(), truth.replace(". ", ".\n"), truth.replace(" ", "  "), truth + " More.", "Before. " + truth,
                truth.replace(",", ""), truth[:half] + "x" + truth[half:], truth.replace("'", "’"), truth.replace(". ", ".\n\n"),
                truth[1:], truth.replace("study", "studdy"))  # fmt: skip
    special = [f"text --- {truth} --- end", f" --- {truth} --- ", f"--- {truth} ---", f"a --- b --- {truth} --- c --- d",
               f"{truth} --- We studdy --- x", f"text --- wrong --- end\n{truth}", f"a --- {truth}\n --- b", f"{truth}\n---\nno"]  # fmt: skip
    return {"truth": truth, "released": FIRST}, contents, special


def _words(truth: str, released: str) -> Question:
    items = truth.split(", ")
    halves = [", ".join(items[:4]), ", ".join(items[4:])]
    special = [f"<solution>{halves[0]}</solution>\n<solution>{halves[1]}</solution>", f"**{halves[0]}**, **{halves[1]}**",
               f"<solution>{halves[1]}</solution> <solution>{halves[0]}</solution> <solution>x</solution>",
               f"<solution>{halves[0]}</solution>", "**" + halves[0] + ",\n" + halves[1] + "**", f"**Groups: {truth}**",
               f"<solution>{halves[0]}, {halves[0]}</solution>", "<solution>" + ", ".join(items[3:] + items[:3]) + "</solution>",
               f"<solution>{halves[1]}, {halves[0]}</solution>", f"<solution>x, {truth}</solution>",
               f"<solution>{halves[0]},\n\n{halves[1]}</solution>", "<solution>" + ", ".join(sorted(items)) + "</solution>"]  # fmt: skip
    return {"truth": truth, "released": released}, (*listed(truth, "eel"), *halves, "eel, newt"), special


def _plot(*sentences: str) -> Question:
    a, b, c, d = sentences
    orders = [(a, b, c, d), (d, c, b, a), (a, c, b, d), (b, a, d, c), (a, b, c), (d,), (a, a, b, c, d), (b, c, d, a), (a, "", d), (a, b, "Oh", c, d)]
    contents = [". ".join(order) + "." for order in orders] + [". ".join(sentences).upper(), "\n".join(f"{s}." for s in sentences),
                " ".join(f"{i}. {s}." for i, s in enumerate(sentences)), "Nothing happens"]  # fmt: skip
    framed = [f"<PLOT_SUMMARY>{one}</PLOT_SUMMARY>" for one in contents] + [f"<PLOT_SUMMARY>\n{one}\n" for one in contents]
    framed += [f"Well. <PLOT_SUMMARY> {one}</PLOT_SUMMARY>. **End of Plot Summary**" for one in contents]
    framed += [f"<PLOT_SUMMARY>{contents[1]}</PLOT_SUMMARY> <PLOT_SUMMARY>{one}</PLOT_SUMMARY>" for one in contents]
    return {"truth": ". ".join(sentences) + ".", "released": FIRST}, contents, framed


def _formula(truth: str, same: Sequence[str], negative: Sequence[str], other: Sequence[str], subtask: str = "any") -> Question:
    """`same` and `negative` are known to have the truth's value, and its negative: what the model that judges would say."""
    row = {"truth": truth, "released": FIRST, "subtask": f"amps_hard_{subtask}", "same": [truth, *same], "negative": list(negative)}
    special = [f"so $x = {one}$" for one in (truth, *same, *negative)] + [f"$${one}$$" for one in (truth, *same)]
    special += [f"$f(x) = {one} + C$" for one in (truth, *same[:2])] + [f"\\[{truth}\\]", f"\\({truth}\\)", f"\\boxed{{y = {truth}}}"]
    special += [f"$1 \\quad \\text{{or}} \\quad {truth}$", f"It is ${truth}$ or ${other[0]}$", f"The answer is {truth}."]
    return row, (truth, *same, *negative, *other), special


QUESTIONS: dict[str, list[Question]] = {
    "web_of_lies_v2": [_lies("yes, no, yes"), _lies("no, yes, no"), _lies("yes, unknown, no"), _lies("no, no, yes")],
    "web_of_lies_v3": [_lies_in_parts("yes, no, unknown, no"), _lies_in_parts("no, yes, yes"), _lies_in_parts("unknown, no, yes, yes")],
    "zebra_puzzle": [
        *[_zebra(truth, FIRST) for truth in ("writing", "3", "three", "fantasy movies", "police-officer", "d&b")],
        *[_zebra(truth, LATER) for truth in ("1, soy-milk, police-officer, crime", "three, jazz", "Italian, 2, writing, 4, tea")],
    ],
    "spatial": [_spatial("3", "three", "Three", "13", "3 pieces"), _spatial("tetrahedra", "two tetrahedra", "tetrahedron"),
                _spatial("square pyramid", "a square pyramid", "square"), _spatial("triangle", "equilateral triangle", "triangles"),
                _spatial("12", "twelve", "1 2", "twelve faces"), _spatial("square", "a square", "squares")],
    "theory_of_mind": [_mind("green box"), _mind("blue_container"), _mind("Kitchen")],
    "sudoku": [_sudoku("1234341221434321"), _sudoku("12.3.41221.34321")],
    "logic_with_navigation": [_walk(3, -2), _walk(-5, 0), _walk(12, 7)],
    "math_comp": [*map(_choice, "ABCDE"), *map(_integer, ("025", "7", "113"))],
    "olympiad": [_proof("3,1,2,4"), _proof("10,2,7,1,5,6,3"), _proof("1,2")],
    "integrals_with_game": [
        _game("3375", "3375.0", "3,375", r"3375\,", "3375/1", "6750/2", "3374", "3.375e3", r"15^3", r"\frac{6750}{2}", "+3375", "-3375"),
        _game("3/4", r"\frac{3}{4}", r"\dfrac{3}{4}", "0.75", "6/8", r"\frac34", r"-\frac{3}{4}", "0.750004", "0.7501", "3 / 4",
              r"\left(\frac{3}{4}\right)", r"\frac{3}{4} + 1", r"\\frac{3}{4}", "13/4", "x = 3/4", r"\tfrac{6}{8}", "75%"),
        _game("11326/3", r"\frac{22652}{6}", "3775.3333333", "3775.333", r"3775 \frac{1}{3}", r"\frac{11326}{3}", "11326 /3", "11326/-3"),
    ],
    "AMPS_Hard": [
        _formula(r"\frac{529}{2}", ["264.5", r"\dfrac{529}{2}", r"\frac{1058}{4}", "264.5001", r"264 + \frac{1}{2}"],
                 [r"-\frac{529}{2}", "-264.5"], ["264", "265.5", "264.6", r"\frac{529}{3}", "five"]),
        _formula(r"36 \sqrt[5]{2} 5^{4/5} 11^{3/5}", [r"36 \cdot 2^{1/5} \cdot 5^{4/5} \cdot 11^{3/5}", r"36 \sqrt[5]{2 * 5^4 * 11^3}"], [],
                 [r"36 \sqrt[5]{2}", "630", "a root"]),
        _formula(r"-\lambda ^3+8 \lambda ^2+7", [r"7 + 8\lambda^2 - \lambda^3", r"-(\lambda^3 - 8\lambda^2 - 7)"], [],
                 [r"\lambda^3 - 8\lambda^2 + 7", r"-\lambda^3 + 8\lambda^2", "zero"], "characteristic_polynomial"),
        _formula(r"\lambda ^2-5 \lambda +6", [r"(\lambda - 2)(\lambda - 3)"], [], [r"\lambda^2 + 5\lambda + 6", "six"], "characteristic_polynomial"),
        _formula(r"-5 (-x-26) (x-8)", [r"5(x+26)(x-8)", r"5x^2 + 90x - 1040"], [r"-5(x+26)(x-8)", r"-5x^2 - 90x + 1040"],
                 [r"5(x-26)(x-8)", "x", "a product"]),
        _formula(r"-\sin (7) \sin (8 x)-\cos (7) \cos (8 x)", [r"-\cos(8x - 7)", r"-\cos(7 - 8x)"], [r"\cos(8x - 7)"],
                 [r"-\cos(8x + 7)", r"\sin(8x - 7)", "a wave"]),
        _formula("247", ["247.0", "247.0002", r"\frac{494}{2}"], ["-247"], ["248", "247.1", "2470", "two"]),
        _formula("499122178", ["499122178.0"], ["-499122178"], ["499122179", "499122178.5", "4.99e8", "big"]),
        _formula(r"\sqrt{\frac{1877}{10}}", [r"\sqrt{187.7}", "13.7004", r"\frac{\sqrt{18770}}{10}"], [r"-\sqrt{187.7}"], ["13.7", "13.6", "root"]),
        _formula(r"\frac{1}{x^2+1}", [r"(x^2+1)^{-1}", r"\frac{1}{1+x^2}"], [r"-\frac{1}{x^2+1}"], [r"\frac{1}{x^2-1}", r"\frac{2}{x^2+1}", "f"]),
    ],
    "cta": [_class("Country.of.Origin"), _class("id"), _class("mass (g)"), _class("Année")],
    "typos": [_typo("We study graphs, and more. They aren't finite. That is all."), _typo("A short text to study, in one sentence's length.")],
    "connections": [_words("bass, trout, pike, carp, ant, drill, island, opal", released) for released in (FIRST, LATER)],
    "plot_unscrambling": [
        _plot("Anna leaves home", "She meets a dragon in the hills", "Both of them fly to the sea", "There they open an inn"),
        _plot("A thief steals a clock", "The town loses its time", "A child finds the clock", "The thief apologises to the town"),
    ],
}  # fmt: skip
