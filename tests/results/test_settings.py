"""The settings of a spec, flat, and the name of its injection rules; points of a plan are groups of its report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from ktbench.config import ModelFiles, ablation_names, compose, freeze
from ktbench.resources import data_folder
from ktbench.results.settings import (
    Setting,
    cell_settings,
    group_by,
    precision_word,
    setting_in_words,
    settings_of,
    varying,
    with_same_keys,
)
from ktbench.spec.cells import plan_cells, points_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import START_KEY, TEMPERATURE_KEY, arm_start, is_sampled
from ktbench.spec.wire import from_plain
from tests.drawing import few_of
from tests.tiny import tiny_cell, tiny_spec

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


def test_the_threshold_of_a_hybrid_is_a_setting_of_parts_that_have_one() -> None:
    """Cells of earlier versions are compared with those of this one."""
    new, former = tiny_cell("+v", avx512=True), tiny_cell("+m", amx=True, amx_min_tokens=5)
    hybrid = tiny_cell("+v+m", part="hybrid", avx512=True, amx=True, amx_min_tokens=9)
    base = tiny_cell(part="hybrid", amx_min_tokens=9)
    found = cell_settings([new, former, base, hybrid])
    assert found[new.key] == found[former.key] and found[base.key] == found[hybrid.key]
    assert [found[cell.key]["engine.amx_min_tokens"] for cell in (new, hybrid)] == [None, 9]


def test_system_and_peer_belong_to_the_arm() -> None:
    ours, other = tiny_spec(), replace(tiny_spec(), system="transformers", peer=PeerSpec(implementation="eager"))
    assert settings_of(ours) == settings_of(other)


def test_the_precision_of_linear_layers_follows_that_of_the_experts() -> None:
    def at(experts: str, dense: str) -> dict[str, Setting]:
        return settings_of(replace(tiny_spec(), precision=experts, device_precision=dense))  # type: ignore[arg-type]

    assert varying([at("bf16", "bf16"), at("int8", "int8")]) == ("precision",)
    assert varying([at("bf16", "bf16"), at("int8", "bf16"), at("int8", "int8")]) == ("precision", "device_precision")
    assert varying([at("int8", "bf16"), at("int8", "int8")]) == ("device_precision",)


def simulated(name: str, **changes: object) -> RunSpec:
    path = data_folder("conf") / "machine" / f"{name}.yaml"
    machine = from_plain(yaml.safe_load(path.read_text()) | changes, MachineSpec)
    return replace(tiny_spec(device="cuda"), machine=machine)


def test_constants_go_with_the_machines_name_and_are_settings_where_it_does_not_tell() -> None:
    a100, cores, bandwidth = (
        settings_of(simulated("paper_a100", **changes)) for changes in ({}, {"cores": 48}, {"read_gb_per_s": 300})
    )
    other, here = settings_of(simulated("paper_4080")), settings_of(tiny_spec())
    assert not any(key.startswith("machine") for key in here)
    assert varying([a100, other]) == ("machine",)
    assert varying(with_same_keys([a100, here])) == ("machine",)
    assert varying([a100, cores]) == ("machine.cores",)
    assert varying([a100, cores, other]) == ("machine", "machine.cores")
    assert varying([a100, cores, bandwidth]) == ("machine.cores", "machine.read_gb_per_s")


def test_beside_simulated_cells_measured_ones_are_here() -> None:
    a100, here = with_same_keys([settings_of(simulated("paper_a100")), settings_of(tiny_spec())])
    assert (a100["machine"], here["machine"]) == ("2x Xeon Platinum 8452Y, A100 40 GB", "here")
    assert (a100["machine.cores"], here["machine.cores"]) == (36, None)
    assert list(a100) == list(here)
    measured = settings_of(tiny_spec())
    assert with_same_keys([measured, measured]) == [measured, measured]


MODELS = {"evals/nano": json.loads((data_folder("evals") / "nano" / "config.json").read_text())}


def compared(cells: list[Cell]) -> list[list[str]]:
    """Keys of the cells that the report puts into one group."""
    worded = {(cell.part, "precision") for cell in cells if precision_word(cell.label)}
    worded |= {(cell.part, TEMPERATURE_KEY) for cell in cells if is_sampled(cell.label)}
    worded |= {(cell.part, START_KEY) for cell in cells if arm_start(cell.label)}

    def group_of(cell: Cell) -> tuple[object, ...]:
        settings = settings_of(cell.spec).items()
        return cell.part, *(item for item in settings if (cell.part, item[0]) not in worded)

    return list(group_by((group_of(cell), cell.key) for cell in cells).values())


# The parts of paper/all are ablations of their own.
@pytest.mark.parametrize("ablation", few_of(ablation_names(), {*ablation_names()} - {"paper/all"}))
def test_the_points_of_a_plan_are_the_groups_of_its_report(ablation: str) -> None:
    parts = freeze(compose([f"+ablation={ablation}"]), ModelFiles(checkpoints=MODELS)).parts
    cells = [cell for part in parts for cell in plan_cells(part.spec, part.sweep, part.name)]
    assert [[cell.key for cell in point] for point in points_of(cells)] == compared(cells)


@pytest.mark.parametrize("value", [None, True, 2.5])
def test_settings_in_words_have_neither_keys_nor_yaml(value: object) -> None:
    for key in ("workload.active_experts", "machine.amx_tflops", "machine.link_gb_per_s", "engine.roles"):
        words = setting_in_words(key, value)
        assert not {"_", ".a", "=", "null", "true"} & {*words, *words.split()} and "machine." not in words
