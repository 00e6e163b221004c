"""Rules matched to modules; every rule that does not mean what it says is refused with its name and the module's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from torch import nn

from ktbench.cli import main
from ktbench.engine.inject.match import lines, match_rules, require_operators
from ktbench.engine.inject.registry import OPERATORS
from ktbench.spec.inject import InjectSpec
from tests.engine.families.zoo import configuration
from tests.engine.inject.networks import LAYERS, blocks, rules


def shown(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, list[str]]:
    """Columns after the module's name by that name, as printed."""
    assert main(["run", "inject.show=true", *overrides]) == 0
    table, _, _ = capsys.readouterr().out.partition("\n\n")
    return {line.split()[0]: line.split()[1:] for line in table.splitlines()}


def test_modules_kept_and_replaced_stand_in_aligned_columns() -> None:
    network = blocks()
    network["layers"][1].gate = None  # type: ignore[index, union-attr]
    inject = rules({"class_name": ".*Experts", "operator": "experts"}, {"module": "head"})
    assert lines(network, match_rules(network, inject)) == [
        "module                            class         operator  rule",
        "layers.{0-2}.experts          x3  PlainExperts  experts   a",
        "layers.{0-2}.shared_expert.0  x3  Linear        kept",
        "layers.{0,2}.gate             x2  Linear        kept",
        "layers.{0-2}.norm             x3  RMSNorm       kept",
        "head                              Linear        linear    b",
    ]


def test_what_a_replaced_module_holds_goes_with_it_unless_it_is_wrapped() -> None:
    network, shared = blocks(), {"module": r".*\.shared_expert", "operator": "shared"}
    wrapped = lines(network, match_rules(network, rules(shared)))
    assert [line.split()[0] for line in wrapped if "shared" in line] == [
        "layers.{0-2}.shared_expert",
        "layers.{0-2}.shared_expert.0",
    ]
    experts = {"module": r"layers\.0\.experts", "operator": "experts"}
    assert sum("experts" in line for line in lines(network, match_rules(network, rules(experts)))) == 2


def test_what_a_network_in_bf16_keeps_in_float32_is_kept() -> None:
    network, inject = blocks().bfloat16(), rules({"class_name": "RMSNorm", "operator": "rms_norm"})
    assert len(match_rules(network, inject)) == LAYERS
    network["layers"][1].norm.float()  # type: ignore[index, union-attr, operator]
    found = [one.name for one in match_rules(network, inject)]
    assert len(found) == LAYERS - 1
    assert "layers.1.norm" not in found


def test_without_rules_everything_is_kept() -> None:
    assert all(" kept" in line for line in lines(blocks(), match_rules(blocks(), InjectSpec()))[1:])


def test_qwen3(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, "model=qwen3_30b_a3b")
    assert table["model.layers.{0-47}.self_attn.q_proj"] == ["x48", "Linear", "linear", "linears"]
    assert table["model.layers.{0-47}.mlp.experts"] == ["x48", "Qwen3MoeExperts", "experts", "experts"]
    assert table["model.layers.{0-47}.mlp.gate"] == ["x48", "Qwen3MoeTopKRouter", "router", "routers"]
    assert table["model.norm"] == ["Qwen3MoeRMSNorm", "rms_norm", "rms_norms"]
    assert table["model.embed_tokens"] == ["Embedding", "kept"]


def test_deepseek_with_its_dense_layers(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, "model=deepseek_v3", "model.layers=6")
    assert table["model.layers.{0-2}.mlp.up_proj"] == ["x3", "Linear", "linear", "linears"]
    assert table["model.layers.{3-5}.mlp.shared_experts"] == ["x3", "DeepseekV3MLP", "shared", "shared_experts"]
    assert table["model.layers.{3-5}.mlp.shared_experts.up_proj"] == ["x3", "Linear", "linear", "linears"]
    assert table["model.layers.{0-5}.self_attn"] == [
        "x6",
        "DeepseekV3Attention",
        "latent_attention",
        "latent_attention",
    ]
    assert table["model.layers.{0-5}.self_attn.kv_b_proj"] == ["x6", "Linear", "kept"]


def test_gpt_oss_with_the_experts_rule_alone(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, "model=gpt_oss_20b", "inject=experts")
    assert table["model.layers.{0-23}.mlp.experts"] == ["x24", "GptOssExperts", "experts", "experts"]
    others = [columns for name, columns in table.items() if name != "module" and not name.endswith("experts")]
    assert {columns[-1] for columns in others} == {"kept"}


def test_the_summary_counts_and_names_rules_that_were_not_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "inject.show=true", "model=tiny"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "tiny: inject=lean replaces 25 modules; not needed here: shared_experts, latent_attention"


@pytest.mark.parametrize(
    ("family", "class_name"), [("qwen3_moe", "Qwen3MoeExperts"), ("deepseek_v3", "DeepseekV3Experts")]
)
def test_a_folder_needs_no_weights_to_be_shown(
    family: str, class_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration(family)
    config.save_pretrained(tmp_path)
    table = shown(capsys, f"model.path={tmp_path}")
    experts = [columns for name, columns in table.items() if name.endswith(".mlp.experts")]
    sparse = config.num_hidden_layers - getattr(config, "first_k_dense_replace", 0)
    assert experts == [[*([f"x{sparse}"] if sparse > 1 else []), class_name, "experts", "experts"]]
    assert main(["run", f"model.path={tmp_path}"]) == 2
    assert "no weights there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"operator": "fast", "module": "lm_head"}, "inject rule mine: there is no operator 'fast'"),
        ({"operator": "linear", "module": "lm_hed"}, "no module matches module=lm_hed; nearest: module lm_head"),
        ({"operator": "rms_norm", "module": "lm_head"}, "rms_norm does not fit lm_head (Linear), which has no 1-D"),
        ({"operator": "linear", "modul": "lm_head"}, "mine.yaml: rule 1 (mine): unknown key 'modul'"),
    ],
)
def test_a_bad_rule_is_exit_code_2_and_one_line(
    rule: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "rules": [{"name": "mine"} | rule]}))
    assert main(["run", "inject.show=true", "model=tiny", f"inject.file={file}"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)


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
            "inject rule a: the operator linear has no argument 'bits'; allowed are precision",
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
    monkeypatch.setitem(OPERATORS, "linear", replace(OPERATORS["linear"], arguments={"bits": (4, 8), "group": (32,)}))
    require_operators(rules({"module": "head", "args": {"bits": 4, "group": 32}}))
    with pytest.raises(ValueError, match="has no argument 'bit', did you mean bits.; allowed are bits, group"):
        require_operators(rules({"module": "head", "args": {"bit": 4}}))
    with pytest.raises(ValueError, match=r"args.bits=5: allowed are 4, 8"):
        require_operators(rules({"module": "head", "args": {"bits": 5}}))


def test_a_module_under_two_names_counts_once() -> None:
    network = blocks()
    network["again"] = network["head"]  # type: ignore[operator, index]
    assert [one.name for one in match_rules(network, rules({"module": "head|again"}))] == ["head"]


def test_every_operator_stands_under_its_own_name() -> None:
    assert {name: kind.name for name, kind in OPERATORS.items()} == {name: name for name in OPERATORS}
    assert isinstance(blocks(), nn.Module)
    assert [name for name, kind in OPERATORS.items() if kind.wraps] == ["attention", "latent_attention", "shared"]
