"""The zoo holds every family of the installed Transformers, each with its shape and its line in the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ktbench.engine.forms import expert_positions, is_experts, read_form
from tests.engine.families.table import FILE, table
from tests.engine.families.zoo import ABSENT, FAMILIES, REFUSED, bare, installed, tiny


def classes_in_the_zoo() -> set[str]:
    networks = [bare(name) for name in (*FAMILIES, *REFUSED)]
    modules = {type(module).__name__ for network in networks for module in network.modules()}
    return {name for name in modules if name.endswith("Experts")} | set(ABSENT)


def test_no_family_is_missing_and_none_is_gone() -> None:
    assert sorted(classes_in_the_zoo()) == sorted(installed())


@pytest.mark.parametrize("name", [name for name in ABSENT if name != "InklingSharedExperts"])
def test_what_is_left_out_has_no_causal_language_model(name: str) -> None:
    entries = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    causal = {one for entry in entries for one in ((entry,) if isinstance(entry, str) else entry)}
    folder = Path(transformers.__file__).parent / "models" / installed()[name]
    source = "".join(file.read_text("utf-8") for file in folder.glob("modeling_*.py"))
    assert causal.isdisjoint(re.findall(r"class (\w+)\(", source))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shape_is_that_of_the_modules(name: str) -> None:
    network, shape = bare(name), tiny(name).shape
    experts = [module for module in network.modules() if is_experts(module)]
    form = read_form(experts[0])
    assert (form.experts, form.hidden, form.ffn) == (shape.experts, shape.hidden, shape.expert_ffn)
    assert len(experts) == shape.moe_layers
    routed = sum(p.numel() for module in experts for p in module.parameters() if p.dim() == 3)
    assert shape.routed_params == routed
    # Attention of other kinds than two counts as if it were grouped-query.
    others = sum(p.numel() for p in network.parameters()) - routed
    assert 0.6 * others < shape.other_params < 1.02 * others


@pytest.mark.parametrize("name", FAMILIES)
def test_experts_stand_in_the_layers_that_have_them(name: str) -> None:
    places = [place for _, place in expert_positions(bare(name))]
    assert [place.number for place in places] == list(range(len(places)))
    assert [place.is_last for place in places] == [place is places[-1] for place in places]
    assert [place.layer for place in places] == sorted({place.layer for place in places})


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_does_not_fit_is_named_with_what_differs(name: str) -> None:
    with pytest.raises(ValueError) as refused:
        expert_positions(bare(name))
    assert REFUSED[name][1] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_committed_table_is_the_one_that_is_generated() -> None:
    assert FILE.read_text(encoding="utf-8") == table(), "write it anew: python -m tests.engine.families.table"
