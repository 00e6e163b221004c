"""An ablation of the user's own, named by its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ktbench.cli import main
from ktbench.config import compose, freeze
from ktbench.resources import option_files
from ktbench.spec.errors import RequestError

MINE = """
# Two arms at two lengths.
defaults:
  - override /workload: prefill
model:
  layers: 2
sweep:
  name: mine
  title: Mine
  arms: [base, +v]
  axes:
    workload.prompt: [8, 16]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("sign", ["+", ""])
def test_it_is_swept_like_one_that_ships(file: Path, sign: str) -> None:
    request = freeze(compose([f"{sign}ablation={file}", "model=tiny"]))
    (part,) = request.parts
    assert (part.name, part.title, part.sweep.arms) == ("", "Mine", ("base", "+v"))
    assert part.spec.workload.phase == "prefill"
    assert [point["workload.prompt"] for point in part.sweep.points] == [8, 16]


def test_overrides_win_over_it(file: Path) -> None:
    request = freeze(compose([f"+ablation={file}", "model=tiny", "workload.prompt=32", "sweep.arms=[base]"]))
    assert request.parts[0].sweep.arms == ("base",)
    assert request.parts[0].spec.workload.prompt == 32


def test_it_is_a_part_beside_others(file: Path) -> None:
    request = freeze(compose([f"+ablation={file},decode", "model=tiny", "model.layers=2"]))
    assert [part.name for part in request.parts] == ["mine", "decode"]
    assert [part.spec.workload.phase for part in request.parts] == ["prefill", "decode"]


def test_a_changed_file_is_read_again(file: Path) -> None:
    compose([f"+ablation={file}"])
    file.write_text(MINE.replace("[base, +v]", "[base, +m]"))
    assert freeze(compose([f"+ablation={file}", "model=tiny"])).parts[0].sweep.arms == ("base", "+m")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "must be a mapping with the key sweep"),
        ("model: {layers: 2}", "must be a mapping with the key sweep"),
        ("sweep: {name: decode, arms: [base]}", "decode is a shipped ablation with other content"),
        ("sweep: {name: mine, arms: [base, +z]}", r"\+z"),
        ("sweep: {name: mine, amrs: [base]}", "amrs"),
    ],
)
def test_what_is_no_ablation_is_refused_in_one_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(RequestError, match=says) as error:
        freeze(compose([f"+ablation={file}", "model=tiny"]))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"^ablation=nowhere\.yaml: No such file"):
        compose(["+ablation=nowhere.yaml"])


def test_a_copy_of_one_that_ships_is_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_bytes(option_files("ablation")["decode"].read_bytes())
    assert freeze(compose([f"+ablation={copy}"])).parts == freeze(compose(["+ablation=decode"])).parts


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        ("peer: {python: ./evil}", "peer.python"),
        ("peer: {operator: evil.py}", "peer.operator"),
        ("peer: {ik_llama: evil}", "peer.ik_llama"),
        ("peer: {llama_bench: ./evil}", "peer.llama_bench"),
        ("peer: {llama_server: ./evil}", "peer.llama_server"),
        ("confirm_unsafe: true", "confirm_unsafe"),
        ("sweep: {axes: {peer.python: [./evil]}}", "peer.python"),
        ("sweep: {axes: {workload.prompt: [{workload.prompt: 8, peer.ik_llama: evil}]}}", "peer.ik_llama"),
        ("sweep: {axes: {peer.tune_s: [{peer: {python: ./evil}}]}}", "peer.python"),
    ],
)
def test_what_a_file_runs_the_command_line_has_to_name(tmp_path: Path, sets: str, key: str) -> None:
    """A file of somebody else's must not start programs of its own choice; as a part of a sweep it is no different."""
    file = tmp_path / "given.yaml"
    content = {"sweep": {"name": "given", "arms": ["base"]}, "model": {"layers": 2}}
    more = yaml.safe_load(sets)
    content["sweep"] |= more.pop("sweep", {})
    file.write_text(yaml.safe_dump(content | more))
    for words in ([f"+ablation={file}"], [f"+ablation={file},decode"]):
        with pytest.raises(RequestError, match=rf"^{key}=\S+: stands in a file"):
            compose([*words, "model=tiny"])


@pytest.mark.parametrize("word", ["peer.python=./mine", "peers.python=./mine"])
def test_a_program_that_the_command_line_names_replaces_that_of_a_file(tmp_path: Path, word: str) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(f"{MINE}peer: {{python: ./evil}}\n")
    assert compose([f"+ablation={file}", "model=tiny", word]).run["peer"]["python"] == "./mine"


def test_a_plan_starts_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even one that the command line names: it is asked what it is when cells are measured."""
    bench = tmp_path / "bin" / "llama-bench"
    bench.parent.mkdir()
    for program in (tmp_path / "python", bench):
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\necho --run-time-repack 1\n")
        program.chmod(0o755)
    named = [f"peer.python={tmp_path}/python", f"peer.ik_llama={tmp_path}"]
    for system, work in (("llama.cpp", "decode"), ("kt-kernel", "layer"), ("ik_llama.cpp", "decode")):
        assert main(["plan", "model=tiny", f"system={system}", f"workload={work}", *named]) == 0, capsys.readouterr()
    assert not (tmp_path / "started").exists()
