"""Help, lists and completion: they name what the configuration takes, and nothing else."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ktbench.cli import VERBS, main
from ktbench.cli.catalogue import KINDS, entries_of
from ktbench.cli.completion import offered
from ktbench.cli.help import HELP, default_options, help_text
from ktbench.cli.keys import OF_A_CELL, OF_RUN, OF_RUNS, OF_SUITES, SPECS, keys_of
from ktbench.config import ablation_names, compose, suite_names
from ktbench.config.keys import known_keys
from ktbench.config.options import group_options
from tests.docs.test_commands import TRIED

ALONE = (*OF_A_CELL, *OF_RUN, *OF_RUNS, *OF_SUITES)
KEYS = {key.name: key for key in (*ALONE, *(key for name, spec in SPECS.items() for key in keys_of(name, spec)))}
# Facts of the models and rules that are chosen by name, and what stands for several keys.
CHOSEN = ("model.config", "model.name", "model.title", "model.source", "inject.name", "inject.rules", "machine")
TRAINING = ("adapters", "lora_rank", "recompute", "examples")  # with workload=train alone
WHOLE = {"engine", "inject", "measure", "model", "peer", "sweep", "workload", "suite", "machine"}
INNER = {
    "peer.operator_id",
    "engine.own_id",
    "engine.placement",
    "engine.serving",
    "workload.stream",
    "workload.stream.slo",
    "sweep.style",
}


def test_every_key_of_the_configuration_has_its_line() -> None:
    known = {key for key in known_keys() if not key.startswith(CHOSEN)} - WHOLE - INNER
    assert known - KEYS.keys() == set()


def test_every_line_says_what_its_key_is() -> None:
    own = (key for verb in ("serve", "chat") for key in HELP[verb].keys)
    assert [key.name for key in (*KEYS.values(), *own) if not key.about] == []


def test_every_line_is_a_key() -> None:
    with_train = {f"workload.{key}" for key in TRAINING}
    with_stream = {f"workload.stream.{key.partition('stream.')[2]}" for key in KEYS if "stream." in key}
    known = {*known_keys(), *with_stream, *with_train}
    assert {key for key in KEYS if not key.startswith("machine.")} - known == set()


def test_defaults_are_those_of_the_configuration() -> None:
    run = compose([]).run
    said = {name: key for name, key in KEYS.items() if not name.startswith(("suite.", "machine.", "workload.stream."))}
    trained = (f"workload.{key}" for key in TRAINING)
    others = ("engine.device", "model.config", "workload.phase", "workload.prompt", "workload.steps", "sweep.parts")
    skipped = (*trained, *others)
    for name, key in said.items():
        if name not in skipped:
            value = run
            for part in name.split("."):
                value = value[part]
            assert key.default == (
                "null"
                if value is None
                else str(value).lower()
                if isinstance(value, bool)
                else (f"{value:g}" if isinstance(value, float) else str(value))
            ), name


def test_options_that_are_chosen_without_being_named() -> None:
    run = compose([]).run
    chosen = default_options()
    assert run["model"]["name"] == chosen["model"]
    assert run["inject"]["name"] == chosen["inject"]
    assert run["machine"]["name"] == chosen["machine"]
    assert compose([f"workload={chosen['workload']}"]).run["workload"] == run["workload"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_names_its_keys_and_options(verb: str) -> None:
    text, told = help_text(verb, VERBS[verb]), HELP[verb]
    assert text.startswith(f"ktbench {verb}: ")
    assert all(f"\n  {key.name}" in text for key in told.all_keys())
    assert all(name in text for group in told.groups for name in group_options()[group] if name != "null")


@pytest.mark.parametrize("verb", [verb for verb in HELP if verb in TRIED and verb not in ("compare", "report")])
def test_examples_of_help_are_commands_that_run(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.host.memory import Memory

    monkeypatch.chdir(tmp_path)
    memory = Memory(total_bytes=2**46, available_bytes=2**46, limit="machine")
    monkeypatch.setattr("ktbench.run.request.read_memory", lambda: memory)
    for words, _ in HELP[verb].examples:
        TRIED[verb](tuple(shlex.split(words)))


def test_help_is_there_at_once() -> None:
    code = "from ktbench.cli import main; main(['sweep', '--help']); main(['completion', 'offer', 'zsh', 'run', 'm'])"
    heavy = ("torch", "numpy", "hydra", "pandas", "matplotlib")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint({heavy!r} and sorted(set({heavy!r}) & sys.modules.keys()))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_has_a_line_about_each(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(entries_of(kind))
    assert all(entry.about and entry.about in line for entry, line in zip(entries_of(kind), lines, strict=True))
    assert main(["list", kind, "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == [
        entry.name for entry in entries_of(kind)
    ]


def test_lists_are_complete() -> None:
    names = {kind: [entry.name for entry in entries_of(kind)] for kind in KINDS}
    assert names["ablations"] == ablation_names()
    assert names["suites"] == suite_names()
    assert set(names["models"]) == set(group_options()["model"])
    assert set(names["machines"]) < set(group_options()["machine"])


@pytest.mark.parametrize(
    "words",
    [["list", "modls"], ["list", "models", "machines"], ["completion"], ["completion", "tcsh"], ["doctor", "--json"]],
)
def test_what_there_is_not_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "allowed" in err


@pytest.mark.parametrize(
    ("line", "has", "lacks"),
    [
        ("", "sweep", "engine.avx512="),
        ("swe", "sweep", "run"),
        ("sweep +ab", "+ablation=", "+suite="),
        ("sweep +ablation=dec", "+ablation=decode", "+ablation=depth"),
        ("run model=q", "model=qwen3_30b_a3b", "model=tiny"),
        ("run engine.ro", "engine.roles=", "engine.avx512="),
        ("run engine.roles=s", "engine.roles=split", "engine.roles=auto"),
        ("run engine.avx512=true engine.avx", "engine.avx2=", "engine.avx512="),
        ("run precision=q4", "precision=q4_0", "precision=bf16"),
        ("report lat", "latest", "csv"),
        ("report latest c", "csv", "latest"),
        ("list m", "models", "suites"),
        ("sweep --q", "--quiet", "--json"),
    ],
)
def test_words_are_completed(line: str, has: str, lacks: str) -> None:
    found = offered(line.split(" "))
    assert has in found
    assert lacks not in found


def test_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "log.jsonl").touch()
    assert offered(["compare", "first", "f"]) == ["first"]
    assert offered(["sweep", "resume=f"]) == ["resume=first"]


def in_shell(shell: str, line: str, tmp_path: Path) -> list[str]:
    """What bash offers for a line, with `ktbench` as it is installed."""
    (tmp_path / "ktbench").write_text(f'#!/bin/sh\nexec {sys.executable} -m ktbench "$@"\n')
    (tmp_path / "ktbench").chmod(0o755)
    script = f"""
PATH={tmp_path}:$PATH
compopt() {{ :; }}
eval "$(ktbench completion {shell})"
COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
_ktbench
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_what_follows_the_equals_sign(tmp_path: Path) -> None:
    assert in_shell("bash", "ktbench swe", tmp_path) == ["sweep"]
    assert in_shell("bash", "ktbench sweep +ablation=deco", tmp_path) == ["decode"]
    assert in_shell("bash", "ktbench run engine.rol", tmp_path) == ["engine.roles="]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_parse(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
