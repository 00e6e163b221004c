"""Rules matched to modules; every rule that does not mean what it says is refused with its name and the module's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from ktbench.engine.inject.match import match_rules, require_operators
from ktbench.engine.inject.registry import OPERATORS
from ktbench.spec.inject import InjectSpec
from tests.engine.inject.networks import LAYERS, blocks, rules

EXPERTS = {"class_name": ".*Experts", "operator": "experts"}
SHARED = {"module": r".*\.shared_expert", "operator": "shared"}
INSIDE = {"module": r".*\.shared_expert\.0"}


def test_replacements_are_in_the_order_of_the_modules_with_rule_and_operator() -> None:
    found = match_rules(blocks(), rules({"module": "head"}, EXPERTS))
    assert [one.name for one in found] == [*(f"layers.{i}.experts" for i in range(LAYERS)), "head"]
    assert {(one.class_name, one.rule.name, one.operator.name) for one in found} == {
        ("PlainExperts", "b", "experts"),
        ("Linear", "a", "linear"),
    }


def test_what_is_inside_a_shared_expert_may_be_replaced_too_and_comes_after_it() -> None:
    names = [one.name for one in match_rules(blocks(), rules(INSIDE, SHARED))]
    assert names[:2] == ["layers.0.shared_expert", "layers.0.shared_expert.0"]


def test_an_optional_rule_may_match_nothing_and_no_rules_replace_nothing() -> None:
    assert match_rules(blocks(), rules({"module": "nothing", "optional": True})) == ()
    assert match_rules(blocks(), InjectSpec()) == ()


def test_the_network_itself_is_never_replaced() -> None:
    found = match_rules(blocks(), rules({"module": "(head)?"}))
    assert [one.name for one in found] == ["head"]


@pytest.mark.parametrize(
    ("inject", "says"),
    [
        (
            rules({"module": r".*\.expert"}),
            r"inject rule a: no module matches module=.*\.expert; nearest: module layers.0.experts",
        ),
        (
            rules({"class_name": "PlainExpert"}),
            "inject rule a: no module matches class_name=PlainExpert; nearest: class PlainExperts",
        ),
        (rules({"module": "zzz"}), "inject rule a: no module matches module=zzz"),
        (
            rules({"module": "head", "class_name": "Conv1d"}),
            "inject rule a: no module matches module=head class_name=Conv1d; nearest: module head",
        ),
        (rules({"module": "head"}, {"class_name": "Linear"}), "inject rules a and b both match head (Linear)"),
        (
            rules({"module": r"layers\.1", "operator": "rotary"}, {"module": r"layers\.1\.gate"}),
            "inject rules a and b: layers.1.gate (Linear) is inside layers.1 (Block), which rotary takes the place",
        ),
        (
            rules({"module": "head", "operator": "lineer"}),
            "inject rule a: there is no operator 'lineer', did you mean linear?; allowed are experts, linear, rms_norm",
        ),
        (
            rules({"module": "head", "operator": "torch.nn.Identity"}),
            "inject rule a: there is no operator 'torch.nn.Identity'",
        ),
        (
            rules({"module": "head", "args": {"bits": 4}}),
            "inject rule a: the operator linear has no argument 'bits'; it takes none",
        ),
        (
            rules({"module": ".*gate"}),
            "inject rule a: linear does not fit layers.0.gate (Linear), which has 16 inputs and 2 outputs, each must",
        ),
        (
            rules({"class_name": "Block", "operator": "experts"}),
            "inject rule a: experts does not fit layers.0 (Block), which is called with (input), not",
        ),
    ],
)
def test_a_wrong_rule_is_one_line_that_names_it_and_the_module(inject: InjectSpec, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        match_rules(blocks(), inject)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_are_those_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "linear", replace(OPERATORS["linear"], arguments=("bits", "group")))
    require_operators(rules({"module": "head", "args": {"bits": 4, "group": 32}}))
    with pytest.raises(ValueError, match="has no argument 'bit'; allowed are bits, group"):
        require_operators(rules({"module": "head", "args": {"bit": 4}}))


def test_a_module_under_two_names_counts_once() -> None:
    network = blocks()
    network["again"] = network["head"]  # type: ignore[operator, index]
    assert [one.name for one in match_rules(network, rules({"module": "head|again"}))] == ["head"]


def test_every_operator_stands_under_its_own_name() -> None:
    assert {name: kind.name for name, kind in OPERATORS.items()} == {name: name for name in OPERATORS}
    assert isinstance(blocks(), nn.Module)
    assert [name for name, kind in OPERATORS.items() if kind.wraps] == ["attention", "shared"]
