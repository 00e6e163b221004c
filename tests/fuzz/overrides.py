"""Command lines: any verb but those that measure nothing else, any keys, any values."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.child import ktbench
from tests.fuzz.words import NUMBERS, TEXTS

_VERBS = ("plan",) * 6 + ("run", "run", "sweep", "eval", "trace", "record", "export", "report", "compare", "validate")
_STARTS = (
    ["model=tiny"],
    ["model=tiny", "machine=paper_a100"],
    ["model=qwen3_30b_a3b", "machine=xeon_6454s_4x4090"],
    ["+ablation=decode", "model=tiny"],
    ["+ablation=decode", "model=tiny", "machine=paper_a100"],
    ["+suite=nano", "limit=1"],
    ["workload=layer"],
    [],
)
# Halves of Hydra's grammar, interpolation, lists, and Python's.
_PIECES = (
    *("[", "]", "{", "}", "(", ")", ",", ":", "=", "'", '"', "\\", "$", "${", "${model}", "${oc.env:HOME}", "${a", "%"),
    *(
        "range(1,3)",
        "range(0,1000000)",
        "choice(1,2)",
        "glob(*)",
        "interval(0,1)",
        "sort(3,2)",
        "shuffle(a,b)",
        "tag(a)",
    ),
    *("int(", "float(nan)", "str([])", "bool(x)", "json_str(1)", "extend_list(1)", "[[[[", "{a:{a:{a:1}}}", "~", "+"),
    *(
        "null",
        "true",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x10",
        "1_000",
        "...",
        "???",
        "@",
        "!!int",
        "&a",
        "*a",
        "<<",
        "#",
    ),
)
_PREFIXES = ("",) * 8 + ("+", "++", "~", "@", "hydra.", "sweep.axes.", " ")


@cache
def _known() -> tuple[list[str], dict[str, list[str]]]:
    from ktbench.config.keys import known_keys
    from ktbench.config.options import group_options

    return known_keys(), group_options()


def _values() -> st.SearchStrategy[str]:
    plain = st.sampled_from([repr(one) for one in NUMBERS]) | st.sampled_from(TEXTS) | st.sampled_from(_PIECES)
    nested = st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]")
            | st.lists(st.tuples(inner, inner), max_size=2).map(
                lambda found: f"{{{','.join(f'{key}:{value}' for key, value in found)}}}"
            )
            | st.lists(inner, min_size=2, max_size=3).map(",".join)
        ),
        max_leaves=5,
    )
    deep = st.tuples(st.sampled_from(["[", "{a:"]), st.sampled_from([40, 500, 3000])).map(
        lambda found: found[0] * found[1] + (")" if found[0] == "(" else "]" if found[0] == "[" else "}") * found[1]
    )
    digits = st.sampled_from(["9" * 400, "9" * 4400, "0." + "1" * 5000, "a" * 9000])
    return plain | nested | nested | st.text(max_size=20) | deep | digits


def _word() -> st.SearchStrategy[str]:
    keys, groups = _known()
    listed = st.tuples(st.sampled_from(_PREFIXES), st.sampled_from(keys), _values()).map(
        lambda found: f"{found[0]}{found[1]}={found[2]}"
    )
    options = st.sampled_from([f"{group}={name}" for group, names in groups.items() for name in names[:8]])
    twice = st.tuples(options, options).map(lambda found: f"{found[0]},{found[1].partition('=')[2]}")
    return listed | listed | listed | options | twice | st.text(max_size=20) | _values()


def inputs() -> st.SearchStrategy[Any]:
    """A verb and its words."""
    words = st.tuples(st.sampled_from(_STARTS), st.lists(_word(), min_size=1, max_size=3))
    return st.fixed_dictionaries(
        {"verb": st.sampled_from(_VERBS), "words": words.map(lambda found: [*found[0], *found[1]])}
    ).filter(lambda found: not any("\x00" in word for word in found["words"]))  # no system passes it on


def carry_out(data: Any) -> int:
    """The command line as it is."""
    return ktbench(data["verb"], *data["words"])
