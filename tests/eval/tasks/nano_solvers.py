"""A second, differently written solution of each task: from the prompt alone, by search and rewriting."""

from __future__ import annotations

import re
from collections.abc import Callable

from ktbench.eval.tasks.nano_questions import LEXICON


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
    rows, keys = re.fullmatch(r"table (.+) get ([\w,]+): ", prompt).groups()
    return " ".join(re.search(rf"\b{key}\d\b", rows)[0] for key in keys.split(","))


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
    word, times, separator = re.fullmatch(r"say (\w+) (\d+) times with (.): ", prompt).groups()
    return ((word + separator) * int(times))[:-1]


def typos(prompt: str) -> str:
    words = prompt.removeprefix("mend ").removesuffix(": ").split()
    return " ".join(_meant(word) for word in words)


def _meant(wrong: str) -> str:
    """The one word of the lexicon that the letters after the first can be put in order to, `?` for any of them."""
    fits = [word for word in LEXICON if wrong[0] == word[0] and _are_letters_of(wrong, word)]
    assert len(fits) == 1, f"{wrong} may be any of {fits}"
    return fits[0]


def _are_letters_of(wrong: str, word: str) -> bool:
    left = list(word)
    for letter in wrong.replace("?", ""):
        if letter not in left:
            return False
        left.remove(letter)
    return len(left) == wrong.count("?")


def cipher(prompt: str) -> str:
    shift, text = re.fullmatch(r"shift (\d) (\w+): ", prompt).groups()
    return bytes((byte - 97 + int(shift)) % 26 + 97 for byte in text.encode()).decode()


def addition(prompt: str) -> str:
    def worked(pair: re.Match[str]) -> str:
        return f"{pair[0]}={_added(pair[1], pair[2])}"

    return re.sub(r"(\d+)\+(\d+)", worked, _asked(prompt))


def _added(one: str, other: str) -> str:
    """Column by column with a carry, as on paper."""
    width, carry, digits = max(len(one), len(other)), 0, ""
    for a, b in zip(reversed(one.zfill(width)), reversed(other.zfill(width)), strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        digits = f"{digit}{digits}"
    return f"{carry or ''}{digits}"


def products(prompt: str) -> str:
    def worked(pair: re.Match[str]) -> str:
        return f"{pair[0]}={sum([int(pair[1])] * int(pair[2]))}"

    return re.sub(r"(\d+)\*(\d+)", worked, _asked(prompt))


def _asked(prompt: str) -> str:
    return re.fullmatch(r"(?:add|mul) (.+): ", prompt)[1]


def chain(prompt: str) -> str:
    legs, first = re.fullmatch(r"route (.+) from (\w): ", prompt).groups()
    pairs = [tuple(leg) for leg in legs.split()]
    before: dict[str, set[str]] = {}
    for place in {place for pair in pairs for place in pair}:
        found, edge = set(), {place}
        while edge := {start for start, end in pairs if end in edge} - found:
            found |= edge
        before[place] = found
    ordered = sorted(before, key=lambda place: len(before[place]))
    assert ordered[0] == first
    return "".join(ordered)


def liars(prompt: str) -> str:
    """Every guess of who is honest, until one agrees with all that was said."""
    said = [(words[0], words[1] == "T", words[2:]) for words in prompt.removeprefix("who ").removesuffix(": ").split()]
    for guess in range(2 ** len(said)):
        honest = {name: bool(guess >> i & 1) for i, (name, _, _) in enumerate(said)}
        if all(honest[name] == (claim == honest[about] if about else claim) for name, claim, about in said):
            return " ".join(name + "LT"[honest[name]] for name, _, _ in said)
    raise AssertionError("no consistent solution")


SOLVERS: dict[str, Callable[[str], str]] = {
    solver.__name__: solver
    for solver in (brackets, trace, lookup, sort, edit, repeat, typos, cipher, addition, products, chain, liars)
}
