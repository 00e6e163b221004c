"""A second, differently written solution of each task: from the prompt alone, by search and rewriting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from ktbench.accuracy.nano.language import LEXICON


def brackets(prompt: str) -> str:
    text = re.fullmatch(r"close (\S+): ", prompt)[1]
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", text)) != text:
        text = shorter
    return text[::-1].translate(str.maketrans("([{<", ")]}>"))


def trace(prompt: str) -> str:
    program, names = re.fullmatch(r"(.+);show (.+): ", prompt).groups()
    scope: dict[str, int] = {}
    exec(program, {"__builtins__": {}}, scope)  # the prompt is a program as it stands
    return " ".join(f"{name}={scope[name]}" for name in names.split(","))


def lookup(prompt: str) -> str:
    rows, keys = re.fullmatch(r"table (.+) get (\w+): ", prompt).groups()
    return " ".join(re.search(rf"\b{key}\d\b", rows)[0] for key in keys)


def sort(prompt: str) -> str:
    rows = prompt.removeprefix("sort ").removesuffix(": ").split()
    for end in range(len(rows), 1, -1):
        for i in range(end - 1):
            if ord(rows[i][0]) > ord(rows[i + 1][0]):
                rows[i], rows[i + 1] = rows[i + 1], rows[i]
    return " ".join(rows)


def edit(prompt: str) -> str:
    word, case, shape = re.fullmatch(r"write (\w+) (lower|upper) (\w+): ", prompt).groups()
    shaped = {
        "plain": word,
        "backwards": "".join(reversed(word)),
        "doubled": re.sub(r"(.)", r"\1\1", word),
        "dashed": re.sub(r"(?<=.)(?=.)", "-", word),
    }[shape]
    return shaped.swapcase() if case == "upper" else shaped


def repeat(prompt: str) -> str:
    word, times, separator = re.fullmatch(r"say (\w+) (\d) times with (.): ", prompt).groups()
    return ((word + separator) * int(times))[:-1]


def typos(prompt: str) -> str:
    words = prompt.removeprefix("mend ").removesuffix(": ").split()
    return " ".join(_meant(word) for word in words)


def _meant(wrong: str) -> str:
    """The one word of the lexicon with these letters that differs in two neighbouring places."""
    fits = [word for word in LEXICON if Counter(word) == Counter(wrong)]
    fits = [word for word in fits if _differences(word, wrong) in ([1, 2], [2, 3], [3, 4])]
    assert len(fits) == 1, f"{wrong} may be any of {fits}"
    return fits[0]


def _differences(one: str, other: str) -> list[int]:
    return [i for i in range(5) if one[i] != other[i]]


def cipher(prompt: str) -> str:
    shift, text = re.fullmatch(r"shift (\d) (\w+): ", prompt).groups()
    return bytes((byte - 97 + int(shift)) % 26 + 97 for byte in text.encode()).decode()


def addition(prompt: str) -> str:
    one, other = re.fullmatch(r"add (\d+)\+(\d+)= ", prompt).groups()
    written, carry = "", 0
    for a, b in zip(one, other, strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        written += str(digit)
    return written + str(carry)


def products(prompt: str) -> str:
    one, other = re.fullmatch(r"mul (\d+)\*(\d+)= ", prompt).groups()
    return "".join(str(sum([int(a)] * int(b)))[-1] for a, b in zip(one, other, strict=True))


def chain(prompt: str) -> str:
    relations, first = re.fullmatch(r"order (.+) from (\w): ", prompt).groups()
    above: dict[str, set[str]] = {}
    pairs = [relation.split(">") for relation in relations.split()]
    for name in {name for pair in pairs for name in pair}:
        found, edge = set(), {name}
        while edge := {more for more, less in pairs if less in edge} - found:
            found |= edge
        above[name] = found
    ordered = sorted(above, key=lambda name: len(above[name]))
    assert ordered[0] == first
    return ">".join(ordered)


def liars(prompt: str) -> str:
    first, *others = prompt.removesuffix(" who: ").split()
    people = [first[0], *(statement[0] for statement in others)]
    for guess in range(2 ** len(people)):
        honest = {name: bool(guess >> i & 1) for i, name in enumerate(people)}
        said = ((name, about, says == "T") for name, _, about, says in others)
        if honest[first[0]] == (first[1] == "T") and all(
            (honest[about] == claim) == honest[name] for name, about, claim in said
        ):
            return " ".join(name + ("T" if honest[name] else "L") for name in people)
    raise AssertionError("nobody can be right")


SOLVERS: dict[str, Callable[[str], str]] = {
    solver.__name__: solver
    for solver in (brackets, trace, lookup, sort, edit, repeat, typos, cipher, addition, products, chain, liars)
}
