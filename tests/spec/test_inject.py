"""A rule matches whole names, and refuses what could not be one."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.wire import from_plain, spec_id, to_plain
from tests.tiny import tiny_spec


def rule(**changes: Any) -> InjectRule:
    return InjectRule(**({"name": "a", "operator": "linear", "module": ".*"} | changes))


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        ({"module": r".*\.experts"}, True),
        ({"module": "experts"}, False),
        ({"module": None, "class_name": "Mixtral.*"}, True),
        ({"module": None, "class_name": "Experts"}, False),
        ({"module": r".*\.experts", "class_name": "Linear"}, False),
        ({"module": r".*\.gate", "class_name": "MixtralExperts"}, False),
        ({"module": r".*\.experts", "class_name": ".*Experts"}, True),
    ],
)
def test_whole_names_match_and_both_patterns_have_to(patterns: dict[str, str | None], matches: bool) -> None:
    assert rule(**patterns).matches("model.layers.3.mlp.experts", "MixtralExperts") is matches


def test_a_rule_says_what_it_looks_for_as_it_was_written() -> None:
    assert rule(module=r"a\.b", class_name="C").wants == r"module=a\.b class_name=C"
    assert rule(module=None, class_name="C").wants == "class_name=C"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"module": None}, "inject rule a: set module, class_name or both"),
        ({"module": "("}, "inject rule a: module='(' is no regular expression"),
        ({"class_name": "[[a]"}, "is no regular expression: Possible nested set"),
        ({"module": "a{99999999999999999999}"}, "is no regular expression"),
        ({"module": "a\nb"}, "must be one line of printable characters"),
        ({"name": "two words"}, "inject rule 'two words': allowed are letters"),
        ({"name": ""}, "inject rule '': allowed are letters"),
        ({"operator": "os:system"}, "operator 'os:system': allowed are letters"),
        ({"args": {"": 1}}, "inject rule a: args '': allowed are letters"),
        ({"args": {"x": float("nan")}}, "args.x=nan: must be a number below 2**63"),
        ({"args": {"x": 2**70}}, "must be a number below 2**63"),
        ({"args": {"x": "a\nb"}}, "args.x='a\\nb': must be one line"),
    ],
)
def test_mistake_is_one_line_with_the_rule(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        rule(**changes)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_spec_refuses_two_rules_of_one_name_and_a_name_that_is_no_word() -> None:
    with pytest.raises(ValueError, match="inject=mine: two rules are called a"):
        InjectSpec(name="mine", rules=(rule(), rule(module="x")))
    with pytest.raises(ValueError, match="inject 'my file': allowed are letters"):
        InjectSpec(name="my file")


def test_rules_survive_a_round_trip_and_are_part_of_what_was_asked() -> None:
    inject = InjectSpec(name="mine", rules=(rule(args={"x": 1, "y": "z", "n": None}, optional=True),))
    assert from_plain(to_plain(inject), InjectSpec) == inject
    plain = tiny_spec()
    asked = from_plain(to_plain(plain) | {"inject": to_plain(inject)}, type(plain))
    assert spec_id(asked) != spec_id(plain)
    assert asked.weights_key != plain.weights_key
