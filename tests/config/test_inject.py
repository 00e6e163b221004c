"""Rules come from a shipped file or from a user's own; whatever a file holds, a mistake is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.config import Request, compose, freeze
from ktbench.config.inject import parse_rules, read_rules
from ktbench.resources import data_folder
from ktbench.spec.errors import RequestError
from ktbench.spec.inject import InjectSpec
from ktbench.spec.wire import digest, to_plain

RULE = {"name": "norms", "operator": "rms_norm", "class_name": ".*RMSNorm"}
SHIPPED = sorted(path.stem for path in (data_folder("conf") / "inject").glob("*.yaml"))


def requested(*overrides: str) -> Request:
    return freeze(compose(overrides))


def inject_of(*overrides: str) -> InjectSpec:
    return requested(*overrides).parts[0].spec.inject


def written(folder: Path, content: Any) -> Path:
    file = folder / "mine.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def refusal(*overrides: str) -> str:
    with pytest.raises(RequestError) as raised:
        requested(*overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_composes_under_its_own_name(name: str) -> None:
    inject = inject_of(f"inject={name}")
    assert inject == read_rules(data_folder("conf") / "inject" / f"{name}.yaml")
    assert inject.name == name


def test_lean_is_the_default_and_experts_is_its_first_rule_alone() -> None:
    assert inject_of() == inject_of("inject=lean")
    assert inject_of("inject=experts").rules == inject_of().rules[:1]


def test_every_part_of_a_sweep_has_the_rules() -> None:
    assert {part.spec.inject.name for part in requested("+ablation=kernels", "inject=experts").parts} == {"experts"}


def test_a_file_of_ones_own_takes_the_place_of_the_groups_rules(tmp_path: Path) -> None:
    file = written(tmp_path, {"name": "mine", "rules": [RULE | {"optional": True, "args": {"x": 1.5}}]})
    (rule,) = inject_of(f"inject.file={file}").rules
    assert (rule.name, rule.class_name, rule.module) == ("norms", ".*RMSNorm", None)
    assert (rule.optional, rule.args) == (True, {"x": 1.5})


def test_a_copy_of_a_shipped_file_may_keep_its_name_until_it_differs(tmp_path: Path) -> None:
    text = (data_folder("conf") / "inject/lean.yaml").read_text()
    assert inject_of(f"inject.file={written(tmp_path, text)}") == inject_of()
    file = written(tmp_path, text.replace("optional: true", "optional: false"))
    assert "lean is the name of a shipped rule file with other rules" in refusal(f"inject.file={file}")


def test_show_is_asked_for_with_one_cell_only() -> None:
    assert not requested().show
    assert requested("inject.show=true").show
    assert "leave out the ablation" in refusal("inject.show=true", "+ablation=decode")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "must be a mapping with the keys name, rules"),
        ("text", "must be a mapping with the keys name, rules"),
        ("3", "must be a mapping with the keys name, rules"),
        ("[]", "must be a mapping with the keys name, rules"),
        ("a: [", "is not YAML"),
        ("name: a\nname: b\nrules: []", "the key name is there twice"),
        ("x: !!timestamp y", "is not YAML of rules (AttributeError)"),
        ({"name": "mine"}, "the key rules is missing"),
        ({"name": "mine", "rules": 3}, "rules must be a list"),
        ({"name": 3, "rules": []}, "name: expected str, got int"),
        ({"name": "mine", "rules": [], "show": True}, "unknown key 'show'"),
        ({"name": "mine", "rules": ["x"]}, "rule 1: must be a mapping"),
        ({"name": "mine", "rules": [RULE, RULE | {"modul": "x"}]}, "rule 2 (norms): unknown key 'modul', did you mean"),
        ({"name": "mine", "rules": [{"name": "a", "module": "x"}]}, "rule 1 (a): the key operator is missing"),
        ({"name": "mine", "rules": [RULE | {"class_name": 3}]}, "rule 1 (norms): class_name: expected str | null"),
        ({"name": "mine", "rules": [RULE | {"optional": "yes"}]}, "rule 1 (norms): optional: expected bool, got str"),
        ({"name": "mine", "rules": [RULE | {"args": {"x": [1]}}]}, "rule 1 (norms): args[...]: expected bool | int"),
        ({"name": "mine", "rules": [RULE | {"class_name": "("}]}, "class_name='(' is no regular expression"),
        ({"name": "mine", "rules": [RULE, RULE]}, "two rules are called norms"),
    ],
)
def test_wrong_content_is_refused_with_file_rule_and_key(tmp_path: Path, content: Any, says: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(ValueError) as raised:
        read_rules(file)
    said = str(raised.value)
    assert said.startswith(f"inject.file={file}: ")
    assert says in said
    assert "\n" not in said


def test_what_a_file_is_refused_for_is_the_requests_refusal(tmp_path: Path) -> None:
    file = written(tmp_path, {"name": "mine", "rules": [RULE | {"modul": "x"}]})
    assert refusal(f"inject.file={file}").startswith(f"inject.file={file}: rule 1 (norms): unknown key 'modul'")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["inject=lea"], "inject=lea: unknown, did you mean lean?; allowed are experts, lean"),
        (["inject.sho=true"], "inject.sho: unknown key, did you mean inject.show?"),
        (["inject.show=maybe"], "inject.show=maybe: allowed are true and false"),
        (["inject.file=/nowhere.yaml"], "inject.file=/nowhere.yaml: No such file"),
        (["inject.rules=[]"], "inject: lean is the name of a shipped rule file with other rules"),
        (["inject.name=mine", "inject.rules=[{name: a}]"], "inject: rule 1 (a): the key operator is missing"),
    ],
)
def test_wrong_override_is_one_line(overrides: list[str], says: str) -> None:
    assert says in refusal(*overrides)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_rules(file)


@pytest.mark.parametrize("key", ["precision", "device_precision"])
def test_int4_alone_means_the_smallest_groups(key: str) -> None:
    assert getattr(requested(f"{key}=int4").parts[0].spec, key) == "int4_g32"
    assert f"{key}: invalid enum value 'int5'" in refusal(f"{key}=int5")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["lean", ".*", "(", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["name", "operator", "module", "class_name", "args", "optional", "other"])
RULES = st.fixed_dictionaries(
    {"name": VALUES | st.just("a"), "operator": st.just("linear") | VALUES, "module": st.text(max_size=8) | VALUES},
    optional={"args": st.dictionaries(st.text(max_size=3), VALUES, max_size=2), "optional": VALUES},
) | st.dictionaries(KEYS, VALUES)
FILES = st.fixed_dictionaries({"name": st.just("mine") | VALUES, "rules": st.lists(RULES, max_size=3) | VALUES})


def assert_frozen_or_refused(read: Any, *content: Any) -> None:
    """Rules that can be stored and identified, or one line."""
    try:
        spec = read(*content)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert digest(to_plain(spec))


@settings(max_examples=300, deadline=None)
@given(FILES | VALUES)
def test_any_content_is_frozen_or_refused(content: Any) -> None:
    assert_frozen_or_refused(parse_rules, content, "here")


TAGS = st.sampled_from(["", "!!int", "!!timestamp", "!!binary", "!!set", "!!python/name:os.system", "&a", "*a", "!x"])
LINES = st.builds("{}{}: {} {}".format, st.sampled_from(["", "- ", "  "]), KEYS, TAGS, st.text(max_size=12))
TEXTS = st.text() | st.lists(LINES, max_size=6).map("\n".join) | st.binary()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_frozen_or_refused(read_rules, file)
