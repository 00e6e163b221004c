r"""LiveBench's way to find `\boxed{…}`, `<solution>…</solution>` and the like, step by step, as its rules say.

These rules are written from LiveBench (commit b0fb577) alone, and share nothing with the graders under test.
"""

from __future__ import annotations

import re


class Failure(Exception):
    """Where LiveBench's grader fails: it scores 0."""


def box(text: str) -> str | None:
    r"""What the last box holds; None without one.

    1. If `\boxed` is followed by a blank anywhere: all after the last such, up to the next dollar sign.
    2. Else the last `\boxed`; if the text has none, the last `\fbox`. From there to where the braces balance.
    3. Dollar signs go, `fbox` becomes `boxed`. What is then neither `\boxed …` nor `\boxed{…}` is a failure.
    """
    if "\\boxed " in text:
        after = text.rsplit("\\boxed ", maxsplit=1)[-1]
        return after.split("$")[0]
    begin = text.rfind("\\boxed")
    if begin == -1:
        begin = text.rfind("\\fbox")
    if begin == -1:
        return None
    depth = 0
    for number, sign in enumerate(text[begin:]):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == "}" and depth == 0:
            return content(text[begin : begin + number + 1])
    return None


def content(whole: str) -> str:
    whole = whole.replace("$", "")
    whole = whole.replace("fbox", "boxed")
    if "\\boxed " in whole:
        if whole[:7] != "\\boxed ":
            raise Failure(whole)
        return whole[7:]
    if whole[:7] != "\\boxed{":
        raise Failure(whole)
    return whole[7:-1]


def needed(found: str | None) -> str:
    """Where LiveBench reads a box without asking whether there is one."""
    if found is None:
        raise Failure("no box")
    return found


def doubled(text: str) -> str:
    """A box drawn as a frame, in text with two backslashes for one."""
    return re.sub(r"\\\\fbox\{", r"\\\\boxed{", text)


def tags(text: str) -> list[str]:
    """Tags in lower case that open and close on the same line."""
    return re.findall("<solution>([^\n]*?)</solution>", text)


def tags_or_closing(text: str) -> list[str]:
    """As before, or from one closing tag to the next."""
    return tags(text) or re.findall("</solution>([^\n]*?)</solution>", text)


def any_tags(text: str) -> list[str]:
    """Tags in any case and over any number of lines."""
    return re.findall("(?is)<solution>(.*?)</solution>", text)


def drop(text: str, *parts: str) -> str:
    for part in parts:
        text = "".join(text.split(part))
    return text
