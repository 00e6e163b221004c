"""Calls of the kernels from Python: every function of the binding, right arguments and wrong ones."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.child import watched

_STUBS = Path(__file__).parents[2] / "ktbench" / "_kernels.pyi"
# Objects that every input begins with, by the names that arguments refer to.
_EXPERTS, _HIDDEN, _FFN, _TOP_K = 4, 64, 32, 2
_PRECISIONS = (
    "bf16",
    "int8",
    "int4_g32",
    "q8_0",
    "q4_0",
    "mxfp4",
    "fp8",
    "q4_k",
    "nvfp4",
    "int4_zp",
    "iq1",
    "none",
    "",
)
_INTEGERS = (
    *(-1, 0, 1, 2, 3, 4, 16, 31, 32, 64, 256),
    *(2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, 2**64, -(2**63)),
)
_FLOATS = (0.0, 1.0, -1.0, 1e-5, 1e308, float("nan"), float("inf"))
_TEXTS = ("", "avx2", "avx512", "amx", "reference", "silu", "gelu_tanh", "bf16", "int8", "nothing", "\x00", "é" * 50)
_FILES = ("runs/weights", "runs/none", "runs", "", "runs/damaged", "/dev/null")
_DTYPES = ("uint16", "float32", "int64", "uint8", "int32", "float64", "bool", "object", "complex64")
_SIZES = (0, 1, 2, 3, 4, 16, 32, 64, 128)
_REFERENCES = ("team", "two", "experts", "split", "matrix", "moe", "linear", "attention", "prepared", "call", "small")
# Functions that take as long as they are told to, or end the process's threads by design.
_LEFT_OUT = ("peak_flops", "ping_pong_ns", "ReadRoof", "sample")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function or a method of the stubs: its owner, name, and its parameters with their types as text."""

    owner: str
    name: str
    parameters: tuple[tuple[str, str], ...]
    keywords: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        return f"{self.owner}.{self.name}"


@cache
def _functions() -> Mapping[str, _Function]:
    tree = ast.parse(_STUBS.read_text())
    found = [_function("", node) for node in tree.body if isinstance(node, ast.FunctionDef)]
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found += [_function(owner.name, node) for node in owner.body if isinstance(node, ast.FunctionDef)]
    kept = [one for one in found if one.name not in _LEFT_OUT and one.owner not in (*_LEFT_OUT, "Team")]
    return {one.key: one for one in kept}


def _function(owner: str, node: ast.FunctionDef) -> _Function:
    def listed(arguments: Sequence[ast.arg]) -> tuple[tuple[str, str], ...]:
        return tuple((one.arg, ast.unparse(one.annotation) if one.annotation else "") for one in arguments)

    plain = [one for one in node.args.args if one.arg != "self"]
    return _Function(owner, node.name, listed(plain), listed(node.args.kwonlyargs))


def _arrays(dtype: str) -> st.SearchStrategy[Any]:
    """Mostly of the right type, in shapes that are right somewhere."""
    shapes = st.lists(st.sampled_from(_SIZES), min_size=0, max_size=4) | st.sampled_from(
        [[3, _HIDDEN], [3, _TOP_K], [_FFN, _HIDDEN], [_HIDDEN, _FFN], [_HIDDEN], [_FFN], [2, 4, 16], [2, 2, 8, 16]]
    )
    return st.fixed_dictionaries(
        {
            "array": st.sampled_from([dtype] * 9 + list(_DTYPES)),
            "shape": shapes.map(list),
            "fill": st.sampled_from([0, 1, 1, 2, -1, 3, 2**40, "count"]),
            "form": st.sampled_from(
                ["plain"] * 6 + ["turned", "sparse", "read-only", "behind", "repeated", "reversed"]
            ),
        }
    )


def _argument(kind: str) -> st.SearchStrategy[Any]:
    """By the type that the stubs give, one in eight of another."""
    right: list[st.SearchStrategy[Any]] = []
    for word, strategy in (
        ("np.uint16", _arrays("uint16")),
        ("np.float32", _arrays("float32")),
        ("np.int64", _arrays("int64")),
        ("np.uint8", _arrays("uint8")),
        ("Any", _arrays("uint16")),
        ("int", st.sampled_from(_INTEGERS) | st.integers(0, 70)),
        ("float", st.sampled_from(_FLOATS)),
        ("bool", st.booleans()),
        ("str", st.sampled_from([*_PRECISIONS, *_TEXTS, *_FILES])),
        ("None", st.none()),
        ("Sequence", st.lists(st.sampled_from(_INTEGERS), max_size=3)),
    ):
        if word in kind:
            right.append(strategy)
    if any(name in kind for name in ("Team", "Packed", "MoE", "HostCall", "Linear")) or not right:
        right.append(st.sampled_from(_REFERENCES).map(lambda name: {"ref": name}))
    wrong = st.none() | st.sampled_from(_INTEGERS) | st.sampled_from(_TEXTS) | _arrays("float32")
    wrong |= st.sampled_from(_REFERENCES).map(lambda name: {"ref": name})
    return st.one_of(*(st.one_of(*right) for _ in range(7)), wrong)


@st.composite
def _call(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(sorted(_functions())))
    function = _functions()[name]
    count = draw(st.integers(max(0, len(function.parameters) - 2), len(function.parameters)))
    given = {key: draw(_argument(kind)) for key, kind in function.keywords if draw(st.booleans())}
    return {
        "call": name,
        "on": draw(st.sampled_from(_REFERENCES)),
        "args": [draw(_argument(kind)) for _, kind in function.parameters[:count]],
        "kwargs": given,
        "as": draw(st.none() | st.sampled_from(_REFERENCES)),
    }


def _right_forward() -> st.SearchStrategy[Any]:
    """A call of the fused operator whose arguments go together, but for one."""

    def made(found: tuple[int, int, Any, Any]) -> Any:
        tokens, at, wrong, options = found
        arrays: list[Any] = [
            {"array": "uint16", "shape": [tokens, _HIDDEN], "fill": 1, "form": "plain"},
            {"array": "int64", "shape": [tokens, _TOP_K], "fill": "count", "form": "plain"},
            {"array": "float32", "shape": [tokens, _TOP_K], "fill": 1, "form": "plain"},
            {"array": "uint16", "shape": [tokens, _HIDDEN], "fill": 0, "form": "plain"},
        ]
        arrays[at] = arrays[at] | wrong
        return {"call": "MoE.forward", "on": "moe", "args": arrays, "kwargs": options, "as": None}

    wrong = st.just({}) | st.fixed_dictionaries({"form": st.sampled_from(["turned", "sparse", "repeated", "reversed"])})
    wrong |= st.fixed_dictionaries({"fill": st.sampled_from([-1, -2, 4, 2**40])})
    options = st.dictionaries(st.sampled_from(["avx2", "dynamic", "numa", "amx", "avx512"]), st.booleans(), max_size=2)
    return st.tuples(st.integers(0, 40), st.integers(0, 3), wrong, options).map(made)


def inputs() -> st.SearchStrategy[Any]:
    """A precision of the weights and some calls, whose results later calls may use."""
    calls = st.lists(st.one_of(_call(), _call(), _call(), _right_forward()), min_size=1, max_size=4)
    return st.fixed_dictionaries({"precision": st.sampled_from(_PRECISIONS[:6]), "calls": calls})


def carry_out(data: Any) -> int:
    """All calls; errors of Python's are answers."""
    from ktbench import _kernels

    objects = _objects(_kernels, data["precision"])
    with watched():
        for one in data["calls"]:
            try:
                result = _made(_kernels, objects, one)
            except (
                TypeError,
                ValueError,
                IndexError,
                RuntimeError,
                OSError,
                MemoryError,
                OverflowError,
                AttributeError,
            ):
                continue
            if one["as"] is not None and result is not None:
                objects[one["as"]] = result
    return 0


def _objects(kernels: Any, precision: str) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    experts = kernels.PackedExperts(_EXPERTS, _HIDDEN, _FFN, precision)
    found = {"team": kernels.ThreadPool(cpus[:1], 0), "two": kernels.ThreadPool(cpus[:1] * 2, 0), "experts": experts}
    found["split"] = kernels.PackedExperts(2, _HIDDEN, 2 * _FFN, "bf16", 2)
    found["matrix"] = kernels.PackedMatrix(_FFN, _HIDDEN, precision)
    found["moe"] = kernels.MoE(experts, found["team"])
    found["linear"] = kernels.Linear(found["matrix"], found["team"])
    found["attention"] = kernels.DecodeAttention(found["team"])
    hidden, out = np.ones((3, _HIDDEN), np.uint16), np.zeros((3, _HIDDEN), np.uint16)
    ids, gates = np.arange(6).reshape(3, 2) % _EXPERTS, np.ones((3, 2), np.float32)
    found["prepared"] = found["moe"].prepare(hidden, ids, gates, out, avx2=True)
    found["call"] = found["moe"].host_call(hidden, ids, gates, out, avx2=True)
    found["small"] = kernels.SmallCall.add(hidden, hidden.copy(), out)
    experts.save("runs/weights")
    content = Path("runs/weights").read_bytes()
    Path("runs/damaged").write_bytes(content[: len(content) // 2])
    return found


def _made(kernels: Any, objects: Mapping[str, Any], one: Any) -> Any:
    function = _functions()[one["call"]]
    args = [_value(objects, value) for value in one["args"]]
    kwargs = {key: _value(objects, value) for key, value in one["kwargs"].items()}
    target: Any = objects[one["on"]]
    if function.owner:
        owner = getattr(kernels, function.owner)
        if function.name == "__init__":
            return owner(*args, **kwargs)
        same = [held for held in objects.values() if isinstance(held, owner)]
        target = target if isinstance(target, owner) or not same else same[0]
        method = getattr(target if isinstance(target, owner) else owner, function.name)
        return method(*args, **kwargs) if callable(method) else method
    return getattr(kernels, function.name)(*args, **kwargs)


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "turned": lambda array: array.T,
    "sparse": lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
    "behind": lambda array: np.concatenate([array.ravel(), array.ravel()])[array.size :].reshape(array.shape),
    "repeated": lambda array: np.broadcast_to(array[:1], array.shape) if array.ndim and array.size else array,
    "reversed": lambda array: array[::-1] if array.ndim else array,
}


def _value(objects: Mapping[str, Any], value: Any) -> Any:
    if isinstance(value, dict) and "ref" in value:
        return objects[value["ref"]]
    if not isinstance(value, dict):
        return value
    shape, fill = tuple(value["shape"]), value["fill"]
    if value["array"] == "object":
        array = np.empty(shape, object)
    elif fill == "count":
        array = (np.arange(int(np.prod(shape))) % _EXPERTS).reshape(shape).astype(value["array"])
    else:
        array = np.full(shape, fill, np.float64).astype(value["array"])
    if value["form"] == "read-only":
        array.setflags(write=False)
    return _FORMS.get(value["form"], lambda one: one)(array)
