"""Questions that programs answer; a program that LiveBench treats otherwise says by which deviation: `#: name`.

Of each question the contents end with a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from tests.eval.livebench.crafted.words import Question

FENCED = (
    "```python\n@\n```",
    "Here it is.\n\n```python\n@\n```\nDone.",
    "```\n@\n```",
    "@\n```",
    "@\n```\n",
    "`@`",
    "```python\n@",
    "```@```",
    "```python\nprint('no')\n```\nor rather\n```python\n@\n```",
    "```python\n@\n```\n```",
    "~~~\n@\n~~~",
    "``` @ ```\n@\n```",
    "<think>```python\n1\n```</think>```python\n@\n```",
    "\n@\n",
    "@\n\n```\nrun it\n```",
    "```py\n@\n```\n\n",
)

SUMS = [
    "print(sum(map(int, input().split())))",
    "a, b = map(int, input().split())\nprint(a + b)",
    "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
    "import sys\nfor line in sys.stdin.readlines():\n    if line.strip(): print(sum(map(int, line.split())))",
    "import sys\ninput = sys.stdin.readline\nprint(sum(map(int, input().split())))",
    "def main():\n    print(sum(map(int, input().split())))\n\nif __name__ == '__main__':\n    main()",
    'def main():\n    print(sum(map(int, input().split())))\n\nif __name__ == "__main__":\n    main()',
    "def total(xs):\n    return xs[0] + total(xs[1:]) if xs else 0\nprint(total(list(map(int, input().split()))))",
    "print(float(sum(map(int, input().split()))))",
    "print(f'{sum(map(int, input().split())):.5f}', '')",
    "print(sum(map(int, input().split())), end='\\n\\n\\n')",
    "import sys\nprint(sum(map(int, input().split())))\nsys.exit(1)",
    "print(sum(map(int, input().split())))\nexit()",
    "print(sum(map(int, input().split())))\nraise SystemExit",
    "print(sum(map(int, open(0).read().split())))  #: streams",
    "print(sum(map(int, open('/dev/stdin').read().split())))  #: streams",
    "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n"
    "    print(sum(map(int, input().split())))\nasyncio.run(main())",
    "import numpy as np\nprint(np.array(input().split(), dtype=int).sum())",
    "try:\n    print(sum(map(int, input().split())))\n    while True: input()\nexcept (EOFError, StopIteration): pass",
    "print(Fraction(sum(map(int, input().split()))))",
    "from fractions import Fraction\nprint(Fraction(sum(map(int, input().split()))))",
    "print(reduce(add, map(int, input().split())))",
    "print(Counter(input())[' '] + 2)",
    "print(3)",
    "print(sum(map(int, input().split())))\n1 / 0",
    "print(sum(map(int, input().split())) + 1)",
    "print('The sum is', sum(map(int, input().split())))",
    "print(sum(map(int, input().split()))",
    "pass",
    "import os, sys",
    "total = 0  #: global\ndef add(x):\n    global total\n    total += x\n"
    "for x in map(int, input().split()): add(x)\nprint(total)",
    "N = 7  #: global\ndef f():\n    global N\n    N = 0\n    return N\nclass A:\n    n = N\n"
    "print(f() + sum(map(int, input().split())))\nprint(end=str(N)[:N])",
    "import sys  #: streams\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
    "import sys  #: streams\nsys.stdout.buffer.write(str(sum(map(int, input().split()))).encode())",
    "from sys import stdin\nprint(sum(map(int, stdin.readline().split())))",
    "import sys\nwhile line := sys.stdin.readline():\n    print(sum(map(int, line.split())))",
    "from sys import stdin  #: streams\nprint(sum(int(word) for line in stdin for word in line.split()))",
    "from sys import stdin\nprint(sum(map(int, stdin.read().split())))",
    "print(sum(map(int, input().split())))  #: quit\nquit()",
    "print(sum(map(int, open('input.txt').read().split())))",
    "def f(n): return n and f(n - 1)\nprint(f(20_000) + sum(map(int, input().split())))",
    "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and f(n - 1)\n"
    "print(f(60_000) + sum(map(int, input().split())))",
    "print(len(str(10**5000)) - 5001 + sum(map(int, input().split())))",
    "print(eval(input().replace(' ', '-')))",
]
OUTPUTS: Mapping[str, Sequence[str]] = {
    "499122178\n": (
        "499122178",
        "499122178.0",
        "499122179.0",
        "499122179",
        "499122177.99999",
        "4.99122178e8",
        "+499122178",
        "0499122178",
        "499_122_178",
        "499,122,178",
        "499122178\n\n",
        "\n499122178",
        "4 99122178",
        "499122178 0",
        "0x1dbffe02",
        "４９９１２２１７８",
        "",
    ),
    "1.0 2.0\nYes\n\n3": (
        "1.0 2.0\nYes\n\n3",
        "1 2\nYes\n\n3",
        "1.0 2.0\nYes\n3",
        "1 2\nyes\n\n3",
        "1.0  2.0\nYes\n\n3.0",
        "1.0\t2.0\r\nYes\r\n\r\n3",
        "1.0 2.0000001\nYes\n\n3",
        " 1 2 \n Yes\n \n3\n\n\n",
        "1.0 2.0 Yes 3",
        "1.0 2.0\nYes\n\n\n3",
        "1.0 2.0\nYes\n\n3 0",
        "1.00 2e0\nYes\n\n3",
        "2.0 1.0\nYes\n\n3",
        "1.0 2.0\nYes.\n\n3",
        "1.0 2.0\nYes\n\n3\n4",
        "1.0 2.0\nYes\n\n",
    ),
    "Yes\n1.0\n": (
        "Yes\n1",
        "Yes\n1.0",
        "Yes 1.0",
        "Yes\n1.",
        "YES\n1.0",
        "Yes\n1.0\n.",
        "Yes\n0.99999999999",
        "Yes\n1e0",
        "Yes\nTrue",
    ),
    "nan inf -0.0": ("nan inf -0.0", "NaN Infinity 0", "inf", "nan inf 0", "nan  inf -0.0"),
    "inf -0.0 1e400": (
        "Infinity 0 1E+400",
        "inf -0 1e400",
        "sNaN 0 1e400",
        "inf 0.0 1e401",
        f"inf 0 1{'0' * 400}",
        "inf 0 1e99999999999999999999",
    ),
    "0.1 0.2": ("0.1 0.2", "0.10 0.20", "0.1 0.2000000001", ".1 .2", "1/10 2/10", "0.1, 0.2", "1e-1 2e-1", "0.1\n0.2"),
}
CALLS: Sequence[tuple[str, Sequence[tuple[str, str]], Sequence[str]]] = (
    (
        "times",
        (("[1, 2]\n2", "[2, 4]"), ("[]\n2", "[]"), ("[3]\n1", "[3]")),
        (
            "class Solution:\n    def times(self, xs: List[int], k: int) -> List[int]:\n"
            "        return [k * x for x in xs]",
            "def times(xs, k): return [k * x for x in xs]",
            "def times(xs, k): return tuple(k * x for x in xs)",
            "times = lambda xs, k: [k * x for x in xs]",
            "import numpy as np\ndef times(xs, k): return [np.int64(k) * x for x in xs]",
            "import numpy as np\ndef times(xs, k): return list(np.array(xs, dtype=int) * k)",
            "import numpy as np\ndef times(xs, k): return (np.array(xs) * k).tolist()",
            "import numpy as np\ndef times(xs, k): return np.array(xs) * k",
            "import numpy as np\n"
            "def times(xs, k): return np.array(xs) * k if len(xs) == 1 else [k * x for x in xs]  #: array",
            "def times(xs, k): return [float(k * x) for x in xs]",
            "def times(xs, k): return (k * x for x in xs)",
            "def times(xs, k): return deque(k * x for x in xs)",
            "def times(xs, k): print([k * x for x in xs])",
            "def times(xs, k): return str([k * x for x in xs])",
            "def times(xs): return xs",
            "def f(xs, k): return xs",
            "class Solution:\n    def times(xs, k): return xs",
            "class Solution:\n    seen = []\n    def times(self, xs, k):\n        self.seen += xs\n"
            "        return [k * x for x in xs]",
            "# class Solution\ndef times(xs, k): return [k * x for x in xs]",
            "class SolutionB:\n    pass\ndef times(xs, k): return [k * x for x in xs]",
            "class L(list): pass\ndef times(xs, k): return L(k * x for x in xs)",
            "def times(xs, k): return {k * x: 0 for x in xs}",
            "def times(xs, k): exit()",
            "class All:  #: equality\n    def __eq__(self, other): return True\ndef times(xs, k): return All()",
            "def times(xs, k): return xs",
        ),
    ),
    (
        "pairs",
        (("3", "[[1, 2], [3]]"),),
        (
            "def pairs(n): return [[1, 2], [n]]",
            "def pairs(n): return ([1, 2], [n])",
            "def pairs(n): return [(1, 2), (n,)]",
            "def pairs(n): return ((1, 2), (n,))",
            "import numpy as np\ndef pairs(n): return [[np.int32(1), np.float64(2)], [np.int64(n)]]",
            "def pairs(n): return [[True, 2.0], [n]]",
            "def pairs(n): return [[1, 2, n]]",
        ),
    ),
    (
        "count",
        (("1", "3"),),
        (
            "def count(n): return 3",
            "def count(n): return 3.0",
            "import numpy as np\ndef count(n): return np.int64(3)",
            "import numpy as np\ndef count(n): return np.array(3)",
            "import numpy as np\ndef count(n): return np.array([3])",
            "from fractions import Fraction\ndef count(n): return Fraction(6, 2)",
            "from decimal import Decimal\ndef count(n): return Decimal('3.00')",
            "def count(n): return 3 + 0j",
            "def count(n): return '3'",
            "def count(n): return [3]",
            "import enum\nclass E(enum.IntEnum): A = 3\ndef count(n): return E.A",
            "def count(n): return None",
            "import numpy as np\ndef count(n): return np.float32(3.1)",
            "def count(n): return 3.0000001",
            "def count(n): return (3,)",
        ),
    ),
    (
        "found",
        (("1", "true"), ("2", '{"a": 1, "b": [null, 0.5]}'), ("3", '"x"')),
        (
            "def found(n): return {1: True, 2: {'a': 1, 'b': [None, 0.5]}, 3: 'x'}[n]",
            "def found(n): return {1: 1, 2: OrderedDict(b=[None, 0.5], a=1), 3: 'x'}[n]",
            "import numpy as np\n"
            "def found(n): return {1: np.bool_(1), 2: {'a': np.int8(1), 'b': [None, np.half(.5)]}, 3: np.str_('x')}[n]",
            "def found(n): return {1: 'true', 2: {}, 3: 'x'}[n]",
            "def found(n): return {1: True, 2: {'a': 1, 'b': (None, 0.5)}, 3: 'x'}[n]",
            "def found(n): return {1: True, 2: {'a': True, 'b': [None, Fraction(1, 2)]}, 3: 'x'}[n]",
            "def found(n): return [True, 1][n]",
            "class S(str): pass\ndef found(n): return {1: True, 2: {'b': [None, 0.5], 'a': 1.0}, 3: S('x')}[n]",
        ),
    ),
    (
        "keyed",
        (("1", '{"1": 2}'),),
        (
            "def keyed(n): return {'1': 2}",
            "def keyed(n): return Counter({'1': 2})",
            "def keyed(n): return {1: 2}",
            "def keyed(n): return {True: 2}",
        ),
    ),
)


def tests_of(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"input": given, "output": wanted} for given, wanted in pairs]


def _programs(tests: Iterable[tuple[str, str]], programs: Sequence[str], **more: str) -> Question:
    row = {"truth": None, "released": "2024-06-24", "tests": tests_of(tests), **more}
    fenced = [FENCED[0].replace("@", one) for one in programs]
    return row, programs, [*fenced, *[way.replace("@", one) for one, way in product(programs[:2], FENCED)]]


def _printing(wanted: str, outputs: Sequence[str]) -> Question:
    return _programs([("", wanted)], [f"print({text!r})" for text in (*outputs, "x")])


def _completions(partial: str, rest: Sequence[str], tests: Iterable[tuple[str, str]], function: str = "") -> Question:
    """Completions alone, whole programs, and those that lack a part of what they complete."""
    whole = [f"{partial}\n{one}" for one in rest]
    others = [
        partial,
        partial.rstrip() + rest[0],
        rest[0].strip(),
        f"\n{whole[0]}",
        f"# {whole[0]}",
        whole[0].replace("\n", "\n\n", 1),
        rest[-1],
    ]
    return _programs(tests, [*rest, *whole, *others], partial=partial, **({"function": function} if function else {}))


QUESTIONS: dict[str, list[Question]] = {
    "LCB_generation": [
        _programs([("1 2\n", "3\n"), ("5 5", "10\n")], SUMS),
        *[_printing(wanted, outputs) for wanted, outputs in OUTPUTS.items()],
        *[_programs(tests, programs, function=function) for function, tests, programs in CALLS],
        _programs(
            [("2\n\nx\n", "2x\n")],
            [
                "import sys\nprint(*sys.stdin.read().split(), sep='')",
                "a, b, c = open(0)  #: streams\nprint(a.strip() + c)",
                "a = input(); input(); print(a + input())",
                "print(input())",
            ],
        ),
    ],
    "coding_completion": [
        _completions(
            "import sys\n\ndef add(a, b):",
            [
                "    return a + b\n\nprint(add(*map(int, input().split())))",
                "    return b + a\n\nif __name__ == '__main__':\n    print(add(*map(int, input().split())))",
                "    return a - b\n\nprint(add(*map(int, input().split())))",
                "return a + b",
            ],
            [("1 2\n", "3\n"), ("5 5", "10\n")],
        ),
        _completions(
            "class Solution:\n    def times(self, xs: List[int], k: int) -> List[int]:\n        ys = []",
            [
                "        for x in xs:\n            ys.append(k * x)\n        return ys",
                "        return [k * x for x in xs]",
                "        ys += (k * x for x in xs)\n        return tuple(ys)",
                "        return ys",
                "    return ys",
                "        return xs  # no",
            ],
            [("[1, 2]\n2", "[2, 4]"), ("[]\n2", "[]")],
            "times",
        ),
        _completions(
            "s = 0\nfor x in map(int, input().split()):",
            [
                "    s += x\nprint(s)",
                "    s += x\nprint(s / 1)",
                "    s += x + 1e-9\nprint(s)",
                "    s += x\nprint(s, s)",
                "    s = x\nprint(s)",
            ],
            [("1 2\n", "3\n")],
        ),
    ],
}
