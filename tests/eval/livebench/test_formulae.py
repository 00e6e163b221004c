"""LaTeX formulae: what they are worth, held against Python's arithmetic and SymPy's."""

from __future__ import annotations

import cmath
import math

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ktbench.eval.livebench.latex import read_formula, same_value

X = 0.7 + 0.3j


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        (r"2 x^2 - \frac{x}{3} + 1", 2 * X**2 - X / 3 + 1),
        (r"-x^2", -(X**2)),
        (r"\frac12 x", X / 2),
        (r"\frac x2", X / 2),
        (r"x / 2 x", X / 2 * X),
        (r"2 \cdot -3", -6),
        (r"x^{2}^{3}", X**6),
        (r"2^{x^2}", 2 ** (X**2)),
        (r"\sqrt[3]{x} \sqrt 2", X ** (1 / 3) * 2**0.5),
        (r"\sqrt[6]{-15}", (-15 + 0j) ** (1 / 6)),
        (r"4 i \sqrt{5}", 4j * 5**0.5),
        (r"\sqrt{\cos(2)}", 1j * math.sqrt(-math.cos(2))),
        (r"\sin ^2(3 x) x", cmath.sin(3 * X) ** 2 * X),
        (r"\sin 3x \cos x", cmath.sin(3 * X) * cmath.cos(X)),
        (r"\sin(x)^2", cmath.sin(X) ** 2),
        (r"\sin x^2", cmath.sin(X**2)),
        (r"\sin -x", -cmath.sin(X)),
        (r"\tan^{-1} x", cmath.atan(X)),
        (r"\operatorname{sec}(x)", 1 / cmath.cos(X)),
        (r"\mathrm{e}^{x} \ln x", cmath.exp(X) * cmath.log(X)),
        (r"\log _{10}(1000) + \log x", 3 + cmath.log(X)),
        (r"|x - 2| |x|", abs(X - 2) * abs(X)),
        (r"\left|x\right|", abs(X)),
        (r"5 \left[ x - \{1 + x\} \right]", -5),
        (r"20\ 2^{3/5} 5^{2/5}", 20 * 2**0.6 * 5**0.4),
        (r"1{,}234.5 + 1,000", 2234.5),
        (r"f(x) = x + C", X),
        (r"\displaystyle x \approx 3", X),
        (r"\csc\!\left(x\right)\,\cot x", 1 / cmath.sin(X) / cmath.tan(X)),
    ],
)
def test_a_formula_has_its_value(formula: str, wanted: complex) -> None:
    assert read_formula(formula, {"x": X}) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "x +",
        "(x",
        "x)",
        "{x]",
        r"\frac{1}",
        r"\int x",
        "x, y",
        "3 ?",
        "|x",
        "^2",
        "x_",
        "x_{1",
        r"\sqrt[3",
        "(" * 1500,
    ],
)
def test_what_is_no_formula_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        read_formula(formula, {"x": 1})
    assert not same_value(formula, "1")
    assert not same_value("1", formula)


def test_a_formula_of_any_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2000 characters"):
        read_formula("1" + "+1" * 1000, {})


def test_names_are_told_apart() -> None:
    assert read_formula(r"x_1 + x_{12} + \lambda", {"x_1": 1, "x_12": 20, r"\lambda": 300}) == 321
    assert not same_value("x_1", "x_2")
    assert not same_value("x", r"\lambda")
    assert same_value("λ^2", r"\lambda ^2")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (r"\sin^2 x + \cos^2 x", "1", True),
        (r"(x+1)^2", "x^2 + 2x + 1", True),
        (r"\frac{x^2-1}{x-1}", "x + 1", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\ln |x|", r"\ln x", False),
        ("0 x", "0", True),
        ("0.333333", r"\frac13", False),
        (r"\frac{1}{0}", r"\frac{1}{0}", False),
        (r"9^{9^{9^{9^9}}}", r"9^{9^{9^{9^9}}}", False),
        ("9" * 400, "1", False),
        ("*".join(["x"] * 900), "x", False),
    ],
)
def test_two_formulae_are_the_same_function(a: str, b: str, same: bool) -> None:
    assert same_value(a, b) == same
    assert same_value(b, a) == same


def test_numbers_may_be_near_and_signs_turned() -> None:
    assert same_value("13.7", r"\sqrt{\frac{1877}{10}}", within=0.001)
    assert not same_value("13.7", r"\sqrt{\frac{1877}{10}}")
    assert same_value("x - 1", "1 - x", sign=-1)
    assert not same_value("x - 1", "1 - x")


LEAVES = st.sampled_from(["x", "y", "2", "3", "7", "pi", "E"]).map(sympy.sympify)


def grown(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    pair = st.tuples(inner, inner)
    one = st.sampled_from([sympy.sin, sympy.cos, sympy.exp, sympy.sqrt, sympy.log])
    return st.one_of(
        pair.map(lambda ab: ab[0] + ab[1]),
        pair.map(lambda ab: ab[0] * ab[1]),
        pair.map(lambda ab: ab[0] / (ab[1] + 5)),
        st.tuples(inner, st.integers(2, 3)).map(lambda an: an[0] ** an[1]),
        st.tuples(one, inner).map(lambda fa: fa[0](fa[1])),
    )


@given(st.recursive(LEAVES, grown, max_leaves=4))
@settings(max_examples=40, deadline=None)
def test_what_sympy_writes_is_read_as_it_means_it(expression: sympy.Expr) -> None:
    assume(not expression.has(sympy.zoo, sympy.oo, sympy.nan))  # a logarithm of nothing is no formula of an answer
    at = {"x": 0.4 + 0.2j, "y": 1.1 - 0.3j}
    wanted = complex(expression.evalf(subs=at))
    assume(cmath.isfinite(wanted))
    assert read_formula(sympy.latex(expression, ln_notation=True), at) == pytest.approx(wanted, rel=1e-6)
