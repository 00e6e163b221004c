"""The settings of a spec, flat, and the name of its injection rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from ktbench.core.engine import PlacementSpec
from ktbench.core.inject import InjectRule, InjectSpec
from ktbench.core.peers import PeerSpec
from ktbench.core.plain import from_plain
from ktbench.report.settings import Setting, settings_of, varying
from ktbench.resources import data_folder
from tests.tiny import tiny_spec

SHIPPED = sorted((data_folder("conf") / "inject").glob("*.yaml"))
RULE = InjectRule(name="all", operator="linear", class_name="Linear")


def test_fields_of_nested_specs_are_settings_of_their_own() -> None:
    half, most = (
        settings_of(tiny_spec(roles="split", placement=PlacementSpec(policy="random", ratio=ratio)))
        for ratio in (0.5, 0.75)
    )
    assert (half["engine.placement.policy"], half["engine.placement.ratio"]) == ("random", 0.5)
    assert varying([half, most]) == ("engine.placement.ratio",)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_rules_go_by_their_name_and_changed_ones_say_so(path: object) -> None:
    rules = from_plain(yaml.safe_load(path.read_text()), InjectSpec)  # type: ignore[attr-defined]
    changed = replace(rules, rules=(*rules.rules, replace(RULE, name="one_more")))
    assert settings_of(replace(tiny_spec(), inject=rules))["inject"] == rules.name
    assert settings_of(replace(tiny_spec(), inject=changed))["inject"] == f"{rules.name} (changed)"


def test_rules_of_ones_own_go_by_their_name_and_differ_by_what_they_say() -> None:
    mine = InjectSpec(name="mine", rules=(RULE,))
    other = InjectSpec(name="mine", rules=(replace(RULE, optional=True),))
    one, two = (settings_of(replace(tiny_spec(), inject=inject)) for inject in (mine, other))
    assert one["inject"] == two["inject"] == "mine"
    assert varying([one, two]) == ("inject.rules",)


def test_system_and_peer_belong_to_the_arm() -> None:
    ours, other = tiny_spec(), replace(tiny_spec(), system="transformers", peer=PeerSpec(implementation="eager"))
    assert settings_of(ours) == settings_of(other)


def test_the_precision_of_linear_layers_follows_that_of_the_experts() -> None:
    def at(experts: str, dense: str) -> dict[str, Setting]:
        return settings_of(replace(tiny_spec(), precision=experts, device_precision=dense))  # type: ignore[arg-type]

    assert varying([at("bf16", "bf16"), at("int8", "int8")]) == ("precision",)
    assert varying([at("bf16", "bf16"), at("int8", "bf16"), at("int8", "int8")]) == ("precision", "device_precision")
    assert varying([at("int8", "bf16"), at("int8", "int8")]) == ("device_precision",)
