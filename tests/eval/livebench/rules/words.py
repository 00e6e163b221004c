"""LiveBench's rules for the reasoning and language tasks, and for cta: truth, answer, release → score."""

from __future__ import annotations

import difflib
import re

from tests.eval.livebench.rules.boxes import any_tags, box, doubled, drop, needed, tags, tags_or_closing


def half_for_all(right: int, total: int) -> float:
    """Half of the score is for all items together, half for the fraction."""
    return (float(right == total) + right / total) / 2


def bare_triple(answer: str) -> str | None:
    """Where each of the 27 triples is found first; the one that is found furthest back."""
    words = ("yes", "no", "unknown")
    best, place = None, -1
    for first in words:
        for second in words:
            for third in words:
                triple = f"{first}, {second}, {third}"
                if (at := answer.lower().find(triple)) > place:
                    best, place = triple, at
    return best


def bold_boxes(answer: str) -> str:
    """Bold LaTeX counts as a box."""
    answer = answer.replace("\\\\boxed{\\\\textbf{", "\\\\boxed{")
    return doubled(answer).replace("\\textbf{", "\\boxed{")


def web_of_lies_v2(truth: str, answer: str, released: str) -> float:
    parsed = None
    if found := tags_or_closing(answer):
        parsed = found[-1]
    if parsed is None:
        words = []
        for span in re.findall(r"\*\*([^\n]*?)\*\*", answer):
            for word in span.split():
                bare = word.lower().replace(",", "").replace(".", "")
                if bare in ("yes", "no", "unknown"):
                    words.append(bare)
        if words:
            parsed = ", ".join(words[-3:])
    if parsed is None or parsed.strip() == "":
        inside = box(bold_boxes(answer))
        if inside is not None:
            parsed = inside
    if parsed is None:
        parsed = bare_triple(answer)
    if not parsed:
        return 0.0
    if parsed == truth.lower():
        return 1.0
    count = parsed.count("yes") + parsed.count("no") + parsed.count("unknown")
    return 1.0 if count == 3 and truth.lower() in parsed else 0.0


def web_of_lies_v3(truth: str, answer: str, released: str) -> float:
    parsed = None
    if found := tags(answer):
        parsed = found[-1]
    if parsed is None or parsed.strip() == "":
        inside = box(bold_boxes(answer))
        if inside is not None:
            parsed = drop(inside, "\\text{", "}")
    if parsed is None:
        parsed = bare_triple(answer)
    if parsed is None:
        return 0.0
    wanted, given = truth.split(","), parsed.split(",")
    right = 0
    for at in range(min(len(wanted), len(given))):
        right += wanted[at] == given[at]
    return half_for_all(right, len(wanted))


DIGITS = dict(zip("123456789", ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], strict=True))


def zebra_puzzle(truth: str, answer: str, released: str) -> float:
    return zebra_words(truth, answer) if released < "2024-11-25" else zebra_lists(truth, answer)


def zebra_words(truth: str, answer: str) -> float:
    marked = re.findall(r"\*{3}(\w+)\*{3}", answer)
    if not marked:
        marked = re.findall(r"\w+", answer)
    word = marked[-1] if marked else ""
    if word.lower() == truth.lower():
        return 1.0
    if DIGITS.get(word, "-") == truth.lower():
        return 1.0
    return 1.0 if word.lower() + " movies" == truth.lower() else 0.0


def zebra_lists(truth: str, answer: str) -> float:
    wanted = truth.split(",")
    found = tags_or_closing(answer)
    if not found:
        answer = doubled(answer)
        inside = box(answer)
        if inside is not None:
            found.append(drop(inside, "\\text{", "}", "\\"))
    if not found:
        line = answer.strip().split("\n")[-1]
        if line.count(",") == len(wanted) - 1:
            found.append(line)
    if not found:
        return 0.0
    if len(found) == 1:
        given = found[0].split(",")
    else:
        given = []
        for one in found:
            given.extend(one.split(","))
        given = given[-len(wanted) :]
    right = 0
    for at, want in enumerate(wanted):
        if at < len(given):
            item = want.strip().lower().replace("-", " ")
            got = given[at].strip().lower().replace("-", " ").replace("position", "")
            right += item in got
    return half_for_all(right, len(wanted))


COUNTS = (
    *"zero one two three four five six seven eight nine ten eleven twelve".split(),  # noqa: SIM905
    *["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"],
)


def spatial(truth: str, answer: str, released: str) -> float:
    if answer == truth:
        return 1.0
    low = truth.strip().lower()
    spans = re.findall(r"\*\*([^\*]+)\*\*", answer)
    for span in spans[-3:]:
        word = span.strip().lower()
        if word == low:
            return 1.0
        if word in COUNTS and str(COUNTS.index(word)) == low:
            return 1.0
        for shape in ("tetrahedra", "tetrahedron", "triangle", "square"):
            if low == shape and shape in word and len(word) < 2 * len(shape) + 5:
                return 1.0
    inside = box(doubled(answer))
    if inside is None:
        return 0.0
    return float(drop(inside, "\\textbf{", "\\mathbf{", "\\text{", "}") == truth)


def theory_of_mind(truth: str, answer: str, released: str) -> float:
    found = any_tags(answer)
    if not found:
        found = re.findall("(?is)</solution>(.*?)</solution>", answer)
    if found:
        given = found[-1]
    else:
        given = answer.strip().split("\n")[-1].strip()
        for start in ("Answer:", "answer:", "The answer is", "the answer is"):
            if given.startswith(start):
                given = given[len(start) :].strip()
    given = drop(given.strip().lower(), ".", ",", "!", "?", ";", ":").strip()
    return float(truth.strip().lower() in given)


def house_traversal(truth: str, answer: str, released: str) -> float:
    bold = re.findall(r"(\*{2,})(.*?)\1", answer.lower())
    wanted = truth.lower().split(" ")
    if not bold:
        return 0.0
    if len(bold) >= len(wanted):
        backwards = zip(reversed(wanted), reversed(bold), strict=False)
        if all(name in pair for name, pair in backwards):  # one of the pair, stars or text, not a part of either
            return 1.0
    before = -1
    for name in wanted:
        at = bold[-1][1].find(name)
        if at <= before:
            return 0.0
        before = at
    return 1.0


def sudoku(truth: str, answer: str, released: str) -> float:
    found = any_tags(answer)
    given = "".join(found[0].split()) if found else ""
    return float(given == "".join(truth.split()))


def logic_with_navigation(truth: list[int], answer: str, released: str) -> float:
    found = any_tags(answer)
    if not found:
        return 0.0
    for pattern in (r"\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\)", r"(-?\d+)\s*,\s*(-?\d+)"):
        if at := re.search(pattern, found[-1].strip()):
            try:
                pair = (int(at.group(1)), int(at.group(2)))
            except ValueError:
                continue
            return float(pair[0] == truth[0] and pair[1] == truth[1])
    return 0.0


def typos(truth: str, answer: str, released: str) -> float:
    found = tags(answer)
    if found:
        given = found[-1]
    else:
        given = drop(answer, "<solution>", "</solution>")
        if marked := re.search(r".* --- (.*?) --- .*", given):
            given = marked.group(1)
    given = " ".join(line for line in given.strip().split("\n") if line)
    return float(truth in given)


def fours(words: list[str]) -> list[set[str]]:
    """Words go into a group until it holds four different ones."""
    groups: list[set[str]] = []
    for word in words:
        if not groups or len(groups[-1]) == 4:
            groups.append(set())
        groups[-1].add(word.strip().lower())
    return groups


def connections(truth: str, answer: str, released: str) -> float:
    wanted = fours(truth.split(","))
    if released >= "2024-11-25":
        given = fours(connections_words(truth, answer))
        return sum(group in wanted for group in given) / len(wanted)
    best = 0.0
    for span in re.findall(r"\*\*(.*?)\*\*", answer.replace("\n", "")):
        given = fours(span.split(","))
        hits = [group for group in wanted if any(group.issubset(one) for one in given)]
        best = max(best, len(hits) / len(wanted))
    return best


def connections_words(truth: str, answer: str) -> list[str]:
    line = answer.replace("\n", "")
    found = tags(answer) or tags(line) or tags_or_closing(answer) or tags_or_closing(line)
    if not found and "\\boxed" in answer:
        found = [drop(needed(box(answer)), "\\text{", "}", "\\")]
    found = [one.replace("\n", "") for one in found]
    if len(found) < 2:
        return found[0].split(",") if found else []
    every = [word for one in found for word in one.split(",")]
    return every[-len(truth.split(",")) :]


def plot_unscrambling(truth: str, answer: str, released: str) -> float:
    opening, closing = "<PLOT_SUMMARY>", "</PLOT_SUMMARY>"
    if opening in answer:
        after = answer[answer.index(opening) + len(opening) :]
        answer = after[: after.rindex(closing)] if closing in after else after
    wanted = [one.strip() for one in truth.split(".") if one.strip()]
    given = [one.strip() for one in answer.split(".")]
    given = [one for one in given if one not in ("", closing, "**End of Plot Summary**")]
    order = []
    for sentence in wanted:
        near = difflib.get_close_matches(sentence, given, n=1, cutoff=0.0)
        if near:
            order.append(given.index(near[0]))
    return 1 - distance(list(range(len(wanted))), order) / len(wanted)


def distance(a: list[object] | list[int], b: list[object] | list[int]) -> int:
    """Levenshtein's, by the table of all beginnings."""
    table = [[row + column if row * column == 0 else 0 for column in range(len(b) + 1)] for row in range(len(a) + 1)]
    for row in range(1, len(a) + 1):
        for column in range(1, len(b) + 1):
            change = table[row - 1][column - 1] + (a[row - 1] != b[column - 1])
            table[row][column] = min(change, table[row - 1][column] + 1, table[row][column - 1] + 1)
    return table[len(a)][len(b)]


def cta(truth: str, answer: str, released: str) -> float:
    given = answer
    if "\\boxed{" in answer:
        given = drop(needed(box(answer)), "\\text{", "}", "\\")
    name, given = (re.sub(r"[^\w]", "", text.lower().strip()) for text in (truth, given))
    return float(given[len(given) - len(name) :] == name if len(given) >= len(name) else False)
