"""Questions of the tasks whose answers are words: the true content, and what resembles it.

Of each question the contents end with a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Question = tuple[Mapping[str, Any], Sequence[str], Sequence[str]]  # row, contents, answers as they are

LATER, FIRST = "2024-11-25", "2024-06-24"


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
        f"**{truth}** and **no**",
        f"it may be yes, no, yes; {truth}",
        f"{truth}; yes, no, yes; {truth}",
        "**yes** **no**",
        "**Yes**, **No**. **Unknown**",
        "yes, yes, yes, yes",
        "**" + truth.replace(", ", "** **") + "**",
        *[f"<solution>{one}</solution>" for one in ("yes", "no, no", "unknown, yes", f"it is {truth} then")],
    ]
    return {"truth": truth, "released": FIRST}, listed(truth, "no, no, no"), special


def _lies_in_parts(truth: str) -> Question:
    special = [f"<solution>{truth.rpartition(', ')[0]}</solution>", r"\boxed{\text{yes}, \text{no}, \text{yes}}"]
    return {"truth": truth, "released": "2025-04-02"}, listed(truth, "yes"), special


def _zebra(truth: str, released: str) -> Question:
    items = [item.strip() for item in truth.split(",")]
    special = [
        "\n".join(f"{i}. <solution>{item}</solution>" for i, item in enumerate(items)),
        "\n".join(f"<solution>{item}</solution>" for item in [*items, "x"]),
        " ".join(f"***{item}***" for item in items),
        "***" + truth + "***",
        "***fantasy*** is it",
        f"<solution>position {truth}</solution>",
        f"<solution>position-{truth}</solution>",
        *[f"***{word}***" for word in ("3", "three", "Three", "1", "one", "10", "ten", "movies", "d&b")],
        "it is 3",
        "it is three!",
        "it is three'",
        "it is 3)",
        r"\boxed{writing}",
        "‘writing’",
        "writing…",
        "fantasy",
        "police officer",
        "police-officer",
        "The Police-Officer.",
        "***police officer***",
    ]
    return {"truth": truth, "released": released}, listed(truth, "opera"), special


def _spatial(truth: str, *contents: str) -> Question:
    special = [
        f"**{truth}**, **a**, **b**, **c**",
        f"**x** **{truth}** **y** **z**",
        rf"\boxed{{\text{{{truth}}}}}",
        "**two tetrahedra**",
        "**a regular tetrahedron**",
        "**equilateral triangle**",
        "**a square**",
        "**circle square triangle and more**",
        "**a square pyramid, surely**",
        "**it is a triangle, no doubt**",
    ]
    return {"truth": truth, "released": "2024-07-26"}, (truth, truth.upper(), f"{truth}.", *contents, "7"), special


def _houses(truth: str) -> Question:
    names = truth.split(" ")
    one_by_one = " ".join(f"**{name}**" for name in names)
    special = [
        one_by_one,
        f"**first** {one_by_one}",
        f"{one_by_one} **last**",
        " ".join(f"**{name}**" for name in names[::-1]),
        " ".join(f"***{name.upper()}***" for name in names),
        " ".join(f"**{name},**" for name in names),
        " ".join(f"** {name} **" for name in names),
        "\n".join(f"{i}. **{name}**" for i, name in enumerate(names, 1)),
        f"**{names[0]}** **{' '.join(names[1:])}**",
        f"**{' then '.join(names)}**, not **{names[-1]}**",
        f"**{names[-1]}**: **{' -> '.join(names)}**",
        f"***{'** **'.join(names)}***",
        f"****{truth}****",
        f"**{truth}",
        f"*{truth}*",
    ]
    return {"truth": truth, "released": FIRST}, listed(truth, "Nobody", " "), special


def _mind(truth: str) -> Question:
    contents = (
        truth,
        truth.upper(),
        f"the {truth}!",
        truth.replace(" ", "_"),
        truth.replace(" ", ", "),
        f"in the {truth}; or the attic",
        f"{truth.split(maxsplit=1)[0]}",
        f"not {truth}",
        "red basket",
    )
    special = [
        f"The answer is {truth}\nI hope so",
        f"I hope so\nthe answer is the {truth}",
        f"The answer is\n{truth}",
        f"<solution>{truth}\n</solution> and </solution>",
        f"answer: Answer: {truth}",
        f"{truth}?!",
    ]
    return {"truth": truth, "released": "2025-11-25"}, contents, special


def _sudoku(truth: str) -> Question:
    grid = "\n".join(truth[at : at + 4] for at in range(0, len(truth), 4))
    contents = (
        truth,
        grid,
        " ".join(truth),
        grid.replace("\n", "\r\n"),
        truth[:-1],
        truth + "1",
        truth[::-1],
        ",".join(truth),
        truth.replace("1", "１"),
        truth.replace("4", "."),
        f"{truth} ",
        grid.replace("\n", "\n\n"),
        "1" * len(truth),
    )
    return {"truth": truth, "released": "2025-11-25"}, contents, [f"<solution>{truth}</solution>" + truth]


def _walk(x: int, y: int) -> Question:
    contents = (
        f"({x}, {y})",
        f"{x},{y}",
        f"[{x}, {y}]",
        f"( {x} ,{y} )",
        f"x = {x}, y = {y}",
        f"({x}.0, {y}.0)",
        f"({y}, {x})",
        f"{x} {y}",
        f"({x}, {y}, 0)",
        f"(0, 0) to ({x}, {y})",
        f"({x}, {y}) from (0, 0)",
        f"+{x}, +{y}",
        f"0{x}, {y}",
        f"({x}; {y})",
        f"\\left({x}, {y}\\right)",
        f"−{abs(x)}, {y}",
        f"1, 2 ({x}, {y})",
        "(0, 0)",
    )
    return {"truth": [x, y], "released": "2025-12-23"}, contents, ["<solution>" + "9" * 5000 + ", 1</solution>"]


def _class(truth: str) -> Question:
    contents = (
        truth,
        truth.upper(),
        truth.replace(".", " "),
        truth.replace(".", "_"),
        f"{truth} (of things)",
        f"not {truth}",
        f"x{truth}",
        truth[1:],
        truth[:-1],
        f"Name: {truth}",
        "Colour",
    )
    special = [
        f"\\boxed{{year}} {truth}",
        f"The class of this column is: {truth}",
        f"{truth}, since it is",
        f"\\boxed{{{truth}}} {truth}",
    ]
    return {"truth": truth, "released": FIRST}, contents, special


def _typo(truth: str) -> Question:
    half = len(truth) // 2
    contents = (
        truth,
        truth.upper(),
        truth.replace(". ", ".\n"),
        truth.replace(" ", "  "),
        truth + " More.",
        "Before. " + truth,
        truth.replace(",", ""),
        truth[:half] + "x" + truth[half:],
        truth.replace("'", "’"),
        truth.replace(". ", ".\n\n"),
        truth[1:],
        truth.replace("study", "studdy"),
    )
    special = [
        f"text --- {truth} --- end",
        f" --- {truth} --- ",
        f"--- {truth} ---",
        f"a --- b --- {truth} --- c --- d",
        f"{truth} --- We studdy --- x",
        f"text --- wrong --- end\n{truth}",
        f"a --- {truth}\n --- b",
        f"{truth}\n---\nno",
    ]
    return {"truth": truth, "released": FIRST}, contents, special


def _words(truth: str, released: str) -> Question:
    items = truth.split(", ")
    halves = [", ".join(items[:4]), ", ".join(items[4:])]
    special = [
        f"<solution>{halves[0]}</solution>\n<solution>{halves[1]}</solution>",
        f"**{halves[0]}**, **{halves[1]}**",
        f"<solution>{halves[1]}</solution> <solution>{halves[0]}</solution> <solution>x</solution>",
        f"<solution>{halves[0]}</solution>",
        "**" + halves[0] + ",\n" + halves[1] + "**",
        f"**Groups: {truth}**",
        f"<solution>{halves[0]}, {halves[0]}</solution>",
        "<solution>" + ", ".join(items[3:] + items[:3]) + "</solution>",
        f"<solution>{halves[1]}, {halves[0]}</solution>",
        f"<solution>x, {truth}</solution>",
        f"<solution>{halves[0]},\n\n{halves[1]}</solution>",
        "<solution>" + ", ".join(sorted(items)) + "</solution>",
    ]
    return {"truth": truth, "released": released}, (*listed(truth, "eel"), *halves, "eel, newt"), special


def _plot(*sentences: str) -> Question:
    a, b, c, d = sentences
    orders = [
        (a, b, c, d),
        (d, c, b, a),
        (a, c, b, d),
        (b, a, d, c),
        (a, b, c),
        (d,),
        (a, a, b, c, d),
        (b, c, d, a),
        (a, "", d),
        (a, b, "Oh", c, d),
    ]
    contents = [". ".join(order) + "." for order in orders] + [
        ". ".join(sentences).upper(),
        "\n".join(f"{s}." for s in sentences),
        " ".join(f"{i}. {s}." for i, s in enumerate(sentences)),
        "Nothing happens",
    ]
    framed = [f"<PLOT_SUMMARY>{one}</PLOT_SUMMARY>" for one in contents] + [
        f"<PLOT_SUMMARY>\n{one}\n" for one in contents
    ]
    framed += [f"Well. <PLOT_SUMMARY> {one}</PLOT_SUMMARY>. **End of Plot Summary**" for one in contents]
    framed += [f"<PLOT_SUMMARY>{contents[1]}</PLOT_SUMMARY> <PLOT_SUMMARY>{one}</PLOT_SUMMARY>" for one in contents]
    return {"truth": ". ".join(sentences) + ".", "released": FIRST}, contents, framed


QUESTIONS: dict[str, list[Question]] = {
    "web_of_lies_v2": [_lies("yes, no, yes"), _lies("no, yes, no"), _lies("yes, unknown, no"), _lies("no, no, yes")],
    "web_of_lies_v3": [
        _lies_in_parts("yes, no, unknown, no"),
        _lies_in_parts("no, yes, yes"),
        _lies_in_parts("unknown, no, yes, yes"),
    ],
    "zebra_puzzle": [
        *[_zebra(truth, FIRST) for truth in ("writing", "3", "three", "fantasy movies", "police-officer", "d&b")],
        *[
            _zebra(truth, LATER)
            for truth in ("1, soy-milk, police-officer, crime", "three, jazz", "Italian, 2, writing, 4, tea")
        ],
    ],
    "spatial": [
        _spatial("3", "three", "Three", "13", "3 pieces"),
        _spatial("tetrahedra", "two tetrahedra", "tetrahedron"),
        _spatial("square pyramid", "a square pyramid", "square"),
        _spatial("triangle", "equilateral triangle", "triangles"),
        _spatial("12", "twelve", "1 2", "twelve faces"),
        _spatial("square", "a square", "squares"),
    ],
    "theory_of_mind": [_mind("green box"), _mind("blue_container"), _mind("Kitchen")],
    "house_traversal": [_houses("Jim Ida Bo Marc"), _houses("Ann Anna Nan"), _houses("Liz")],
    "sudoku": [_sudoku("1234341221434321"), _sudoku("12.3.41221.34321")],
    "logic_with_navigation": [_walk(3, -2), _walk(-5, 0), _walk(12, 7)],
    "cta": [_class("Country.of.Origin"), _class("id"), _class("mass (g)"), _class("Année")],
    "typos": [
        _typo("We study graphs, and more. They aren't finite. That is all."),
        _typo("A short text to study, in one sentence's length."),
    ],
    "connections": [
        _words("bass, trout, pike, carp, ant, drill, island, opal", released) for released in (FIRST, LATER)
    ],
    "plot_unscrambling": [
        _plot(
            "Anna leaves home",
            "She meets a dragon in the hills",
            "Both of them fly to the sea",
            "There they open an inn",
        ),
        _plot(
            "A thief steals a clock",
            "The town loses its time",
            "A child finds the clock",
            "The thief apologises to the town",
        ),
    ],
}
