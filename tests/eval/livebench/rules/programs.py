"""LiveBench's rules for programs: row, answer → score. Runs them in this process, so only those of this folder."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from types import ModuleType
from typing import Any
from unittest.mock import mock_open, patch

Row = Mapping[str, Any]

NAMES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
BEGIN = "".join(f"from {name} import *\n" for name in (*NAMES.split(), "builtins", "typing"))
BEGIN += "".join(f"import {name}\n" for name in NAMES.split())
BEGIN += "sys.setrecursionlimit(50000)\n"


def code_of(answer: str) -> str:
    lines = answer.rstrip().split("\n")
    marked = [number for number, line in enumerate(lines) if "```" in line]
    if len(marked) >= 2:
        return "\n".join(lines[marked[-2] + 1 : marked[-1]])
    if len(answer) > 1 and answer.startswith("`") and answer.endswith("`"):
        return answer[1:-1]
    if marked and marked[0] == len(lines) - 1:
        return "\n".join(lines[:-1])
    return answer.rstrip()


def programs(row: Row, answer: str) -> float:
    code, partial = code_of(answer), row.get("partial", "")
    if partial and not code.startswith(partial):
        code = partial + "\n" + code
    run = calls if row.get("function") else outputs
    with own_limits():
        try:
            return float(run(row, code))
        except (Exception, SystemExit):
            return 0.0


@contextmanager
def own_limits() -> Iterator[None]:
    """LiveBench takes `quit` away, and reads numbers of more digits than Python does by itself."""
    depth, digits = sys.getrecursionlimit(), sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(50_000)
    try:
        with patch("builtins.quit", None), patch("sys.stdin", io.StringIO()), patch("sys.stdout", io.StringIO()):
            yield
    finally:
        sys.setrecursionlimit(depth)
        sys.set_int_max_str_digits(digits)


def module(code: str) -> ModuleType:
    made = ModuleType("solution")
    exec(code, made.__dict__)
    return made


def calls(row: Row, code: str) -> bool:
    """Each line of an input is an argument; a tuple as a value is a list; values are compared as Python does."""
    held: Any = module(BEGIN + code)
    if "class Solution" in code:
        held = held.Solution()
    function = getattr(held, row["function"])
    for test in row["tests"]:
        value = function(*[json.loads(line) for line in test["input"].split("\n")])
        if isinstance(value, tuple):
            value = list(value)
        if not (value == json.loads(test["output"])):  # noqa: SIM201 – an array has no truth value
            return False
    return True


def outputs(row: Row, code: str) -> bool:
    """All but the imports becomes the body of a function, which each test calls once more."""
    body = wrapped(unguarded(code))
    function = module(body).wrapped_function
    return all(same(printed(function, test["input"]), test["output"]) for test in row["tests"])


def unguarded(code: str) -> str:
    """Without `if __name__ == '__main__':` at the end, whose lines stay."""
    try:
        tree = ast.parse(code)
        last = tree.body[-1]
        if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
            tree.body[-1:] = last.body
            return ast.unparse(tree)
    except Exception:
        pass
    return code


def wrapped(code: str) -> str:
    """Imports stay where they are, all else becomes the body. Of code that is none nothing becomes a function."""
    tree = ast.parse(code)
    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    function = ast.parse("def wrapped_function(): pass")
    assert isinstance(function.body[0], ast.FunctionDef)
    function.body[0].body = [one for one in tree.body if one not in imports]
    return "\n".join([BEGIN, *map(ast.unparse, imports), ast.unparse(function)])


def printed(function: Callable[[], object], given: str) -> str:
    """What the function prints. Names that `import *` has copied before still lead to the streams of the process.

    Of its standard input the methods that read are taken over as well.
    """
    out, left = io.StringIO(), iter(given.split("\n"))
    with (
        patch("sys.stdin.read", lambda *_: given),
        patch("sys.stdin.readlines", lambda *_: given.split("\n")),
        patch("sys.stdin.readline", lambda *_: next(left)),
        patch("sys.stdin", io.StringIO(given)),
        patch("builtins.open", mock_open(read_data=given)),
        patch("sys.stdout", out),
        suppress(SystemExit),
    ):
        function()
    return out.getvalue()


def same(text: str, wanted: str) -> bool:
    """Line by line, without blanks around; numbers as exact decimals."""
    ours, theirs = ([line.strip() for line in one.strip().split("\n")] for one in (text, wanted))
    if len(ours) != len(theirs):
        return False
    for left, right in zip(ours, theirs, strict=True):
        if left != right:
            try:
                if [Decimal(word) for word in left.split()] != [Decimal(word) for word in right.split()]:
                    return False
            except ArithmeticError:
                return False
    return True
