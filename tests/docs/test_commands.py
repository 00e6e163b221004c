"""Every command that README and docs show: quick ones are run, of the others all up to the first load is.

`nox -s docs_commands` runs those, too, on the smallest model.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from docs.gen.ablations import ablations
from docs.gen.repository import DOCS, ROOT
from ktbench.cli import COMPOSING, VERBS, main
from ktbench.cli.hydra import Flags, take_flags
from ktbench.cli.keys import ProbeArguments, ValidationArguments, only_arguments, take_arguments
from ktbench.cli.what_if import read_what_if
from ktbench.config import split_launcher
from ktbench.config.app import jobs_of, with_folder
from ktbench.host.memory import Memory
from ktbench.run.export import read_export
from ktbench.run.feasibility import Machine, feasibility
from ktbench.run.request import CellPlan, as_resumed, eval_request, plan_request, read_request, take_word
from ktbench.run.serving.opening import serving_spec
from ktbench.serve.settings import ChatSettings, ServerSettings
from ktbench.sim.advising.prices import read_prices
from ktbench.spec.errors import RequestError
from ktbench.spec.features import BY_NAME as BY_FEATURE
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import BY_NAME, Peer
from tests.docs.commands import Command, commands, commands_of
from tests.engine.test_device_placement import write_profile

COMMANDS = commands()
OURS = list(dict.fromkeys(command.verb for command in COMMANDS if command.is_ktbench))
ABLATIONS = {one.name: one.verb for one in ablations()}
OTHERS = [command for command in COMMANDS if not command.is_ktbench]
# Programs of a shell that our docs may use around our own; what they do is not ours to test.
SHELL = {
    "git",
    "cd",
    ".",
    "source",
    "pip",
    "python3",
    "export",
    "ls",
    "cat",
    "cp",
    "mkdir",
    "kill",
    "srun",
    "sbatch",
    "ray",
    "docker",
    "apptainer",
}
RECORDED = ROOT / "reports" / "recorded" / "zen4_2_cores" / "lean"
# In the quick form simulated sweeps of at most so many cells are run; what draws more is run in the long one.
FEW_CELLS = 2
# A machine on which a cell that cannot run is the engine's fault.
COMPLETE = Machine(
    cpus=range(64), no_cuda="", gpu_bytes=2**40, features_missing={feature.name: "" for feature in FEATURES}
)
# What the long form changes for a model of a few MB; a command keeps what it says of a checkpoint or a machine.
SMALLEST = {
    "model": "nano",
    "model.layers": "null",
    "model.vocab": "auto",
    "measure.min_rounds": "2",
    "measure.max_rounds": "2",
    "limit": "2",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the commands find what they name: the checkout's folders, a run, a machine, a data folder."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "evals", "reports", "ablations", "conf"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "my_box.yaml").write_text(_block("machines.md", "name: my_box"))
    (folder / "my_ablation.yaml").write_text(_block("howto/ablation.md", "# AVX-512 against base"))
    (folder / "my_figure.yaml").write_text(_block("howto/published.md", "# Decode beside"))
    (folder / "my_numbers.csv").write_text(_block("howto/published.md", "id,figure", "csv"))
    (folder / "my_experts.py").write_text(_block("howto/operator.md", '"""my_experts.py', "python"))
    (folder / "low_gate.py").write_text(_block("howto/feature.md", '"""low_gate.py', "python"))
    shutil.copytree(RECORDED, folder / "run")
    shutil.copytree(RECORDED, folder / "runs" / "recorded")
    write_profile(folder / "qwen3.npz", read_request(["model=qwen3_30b_a3b", "model.layers=4"]).parts[0].spec.model)
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "2 #### 2"}\n')
    shutil.copy(folder / "data" / "train.jsonl", folder / "data" / "test.jsonl")
    _write_groups(folder / "mine")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def _write_groups(mine: Path) -> None:
    """The folder of docs/howto/hydra.md."""
    for name, shipped in {"model/small": "model/tiny", "machine/box": "machine/paper_a100"}.items():
        content = yaml.safe_load((ROOT / "conf" / f"{shipped}.yaml").read_text()) | {"name": name.partition("/")[2]}
        (mine / name).parent.mkdir(parents=True)
        (mine / f"{name}.yaml").write_text(yaml.safe_dump(content))
    for name, text in {
        "ablation/study": "sweep: {arms: [base, +v]}",
        "experiment/first": "workload: {prompt: 8}",
    }.items():
        (mine / name).parent.mkdir()
        (mine / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")


@pytest.fixture(autouse=True, scope="module")
def installed_peer() -> Iterator[None]:
    """The row of the peer that its how-to brings; tests/docs/test_howto.py installs it as a package."""
    content: dict[str, Any] = {}
    exec(_block("howto/peer.md", '"""my_peer.py', "python"), content)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(cast("dict[str, Peer]", BY_NAME), "my_peer", content["PEER"])
        yield


@pytest.fixture(autouse=True, scope="module")
def own_features() -> Iterator[None]:
    """Commands add features of a file to the table, which is as it was afterwards."""
    before = dict(BY_FEATURE)
    yield
    BY_FEATURE.clear()
    BY_FEATURE.update(before)


@pytest.fixture
def ample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for whatever the docs ask, so that the answer does not depend on what else runs here."""
    memory = Memory(total_bytes=2**46, available_bytes=2**46, limit="machine")
    monkeypatch.setattr("ktbench.run.request.read_memory", lambda: memory)


def _block(page: str, start: str, language: str = "yaml") -> str:
    """The block of a page that begins with these words."""
    _, _, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"```{language}\n{start}")
    return start + rest.partition("```")[0]


def _is_plain(verb: str, words: tuple[str, ...]) -> bool:
    """Whether a command names an ablation and nothing else: tests/config/test_compose.py plans each of those."""
    named = words[0].partition("=")[2] if len(words) == 1 and words[0].startswith("+ablation=") else ""
    return ABLATIONS.get(named) == verb


def _eval(words: tuple[str, ...]) -> None:
    if not _is_plain("eval", words):
        plan_request(eval_request(words))


def _one_cell(words: tuple[str, ...]) -> None:
    request = read_request(words)
    assert not request.is_sweep, "takes one cell"
    _require_feasible(plan_request(request))


def _require_feasible(planned: CellPlan) -> None:
    """A command that is shown runs where nothing is missing; what a described machine lacks is stated beside it."""
    reasons = [feasibility(cell.spec, COMPLETE) for cell in planned.here if cell.spec.system == "ktbench"]
    assert None in reasons or not reasons, reasons


def _sweep(words: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as patched:  # what they launch with is an extra; tests/cli/test_launchers.py
        patched.setattr("ktbench.config.launcher.is_installed", lambda name: True)
        _, rest = split_launcher(words)
    rest, _ = take_word("sweep", rest, "shard", "one")
    if _is_plain("sweep", tuple(rest)):
        return
    request = read_request(as_resumed(rest))
    assert request.is_sweep, "one cell is for `run`"
    planned = plan_request(request)
    _require_feasible(planned)
    if 0 < len(planned.simulated) <= FEW_CELLS and not planned.here:
        assert main(["sweep", *words]) == 0


def _export(words: tuple[str, ...]) -> None:
    read_export(words)


def _really(verb: str, *codes: int) -> Callable[[tuple[str, ...]], None]:
    """A verb that takes seconds: run as it is, with one of these exit codes."""

    def run(words: tuple[str, ...]) -> None:
        assert main([verb, *words]) in (codes or (0,))

    return run


def _plan(words: tuple[str, ...]) -> None:
    """What-ifs simulate a price list, in the long form; here list and cell are read."""
    if request := read_what_if(words):
        read_prices(request.prices)
        read_request(request.overrides)
        return
    assert main(["plan", *words]) == 0


def _validate(words: tuple[str, ...]) -> None:
    """Fitting takes minutes, and judging a run needs one of cores alone: tests/cli/test_validate.py."""
    only_arguments("validate", words, ValidationArguments)


def _probe(words: tuple[str, ...]) -> None:
    only_arguments("probe", words, ProbeArguments)


def _compare(words: tuple[str, ...]) -> None:
    """Commits are looked up in a history that a test has none of; their runs are compared in tests/cli."""
    from ktbench.cli.compare import read_comparison

    request = read_comparison(words)
    if {request.before, request.after} <= {"run", "latest"}:
        assert main(["compare", *words]) == 0


def _report(words: tuple[str, ...]) -> None:
    """Runs to join are written in tests/report/test_joined.py."""
    if not any(word.startswith("with=") for word in words):
        assert main(["report", *words]) == 0


def _answering(verb: str, kind: type[Any]) -> Callable[[tuple[str, ...]], None]:
    """What is said before weights load."""

    def read(words: tuple[str, ...]) -> None:
        serving_spec(verb, take_arguments(verb, words, kind, f"{verb}.")[0])

    return read


TRIED: dict[str, Callable[[tuple[str, ...]], None]] = {
    "doctor": _really("doctor"),
    "probe": _probe,
    "plan": _plan,
    "run": _one_cell,
    "sweep": _sweep,
    "merge": lambda words: None,  # what it joins is measured in tests/run/cluster/test_parts.py
    "eval": _eval,
    "serve": _answering("serve", ServerSettings),
    "chat": _answering("chat", ChatSettings),
    "trace": _one_cell,
    "record": lambda words: _one_cell(tuple(take_word("record", words, "output", "a file")[0])),
    "export": _export,
    "report": _report,
    "compare": _compare,
    "advise": _really("advise"),
    "validate": _validate,
    "list": _really("list"),
    "completion": _really("completion"),
}


def test_every_verb_can_be_tried() -> None:
    assert set(VERBS) <= TRIED.keys(), "say in TRIED how commands of the new verb are tried"


def _try(verb: str, words: tuple[str, ...]) -> None:
    flags, rest = Flags(), [*words]
    if verb in COMPOSING and any(word.startswith("-") for word in words):
        flags, rest = take_flags(verb, words)
    if flags.show:
        assert main([verb, *words]) == 0
        return
    rest = with_folder(flags.folder, rest)
    for job in jobs_of(rest) if flags.is_multirun else [rest]:
        TRIED[verb](tuple(job))


@pytest.mark.parametrize("words", OURS, ids=" ".join)
@pytest.mark.usefixtures("here", "ample")
def test_command(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if "engine.device=cuda" in words:  # is planned as where there is one
        monkeypatch.setattr("ktbench.run.feasibility.Machine.local", lambda **_: COMPLETE)
    where = ", ".join(command.where for command in COMMANDS if command.is_ktbench and command.verb == words)
    assert words[0] in VERBS, f"{where}: there is no verb {words[0]}"
    try:
        _try(words[0], words[1:])
    except RequestError as error:
        pytest.fail(f"{where}: {' '.join(words)}: {error}")


@pytest.mark.parametrize("command", OTHERS, ids=lambda command: " ".join(command.words))
def test_command_of_another_program(command: Command) -> None:
    words = [word for word in command.words if "=" not in word or word.startswith("-")] or ["export"]
    if words[0] == "nox":
        assert words[words.index("-s") + 1] in _sessions(), command.where
    elif words[:2] == ["python", "-m"]:
        assert _is_module(words[2]), f"{command.where}: no module {words[2]}"
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), command.where
    elif words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file(), command.where
    else:
        assert words[0] in SHELL, f"{command.where}: say in SHELL that {words[0]} is no program of ours"


def _is_module(name: str) -> bool:
    """Whether there is such a module; ours are looked for, not imported. mkdocs is of an environment of its own."""
    file = ROOT.joinpath(*name.split("."))
    return name == "mkdocs" or file.with_suffix(".py").is_file() or find_spec(name.partition(".")[0]) is not None


def _sessions() -> set[str]:
    """Functions of noxfile.py that are sessions."""
    nodes = ast.parse((ROOT / "noxfile.py").read_text()).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.decorator_list}


@pytest.mark.parametrize(
    "line", ["sweep +ablation=decade", "sweep +ablation=decode model.layer=4", "run engine.w=true"]
)
@pytest.mark.usefixtures("ample")
def test_a_wrong_command_fails(line: str) -> None:
    (command,) = commands_of(f"```bash\npython -m ktbench {line}\n```\n", "page.md")
    with pytest.raises(RequestError, match="unknown"):
        TRIED[command.verb[0]](command.verb[1:])


def test_blocks_are_read_as_a_shell_reads_them() -> None:
    text = "```bash\npython3 bootstrap.py python -m ktbench sweep +ablation=NAME \\\n    limit=N   # why\n```\n"
    (command,) = commands_of(text, "page.md")
    assert command.verb == ("sweep", "+ablation=decode", "limit=2")


def test_output_is_no_command() -> None:
    assert not list(commands_of("```\nsweep 3 cells\nwrote x\n```\n`doctor` and `run …`\n", "page.md"))


def test_the_described_machine_is_yaml() -> None:
    assert yaml.safe_load(_block("machines.md", "name: my_box"))["name"] == "my_box"


@pytest.mark.docs_commands
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_command_runs(words: tuple[str, ...], here: Path, request: pytest.FixtureRequest) -> None:
    """Exit code 3 is that of a comparison; 4 is accepted for a single cell only if this machine lacks something."""
    if "docs_commands" not in request.config.option.markexpr:
        pytest.skip("takes minutes in all: nox -s docs_commands")
    if words[:2] == ("compare", "HEAD~1"):
        pytest.skip("needs runs of two commits: nox -s regress makes them")
    done = subprocess.run(
        [sys.executable, "-m", "ktbench", words[0], *smallest(words[0], words[1:])],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    if missing := re.search(r"^.*hydra/launcher=.*not both installed.*$", done.stderr, re.MULTILINE):
        pytest.skip(missing[0])
    codes = (0, 3) if words[0] == "compare" else (4,) if _is_missing_here(words) else (0,)
    assert done.returncode in codes, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def _is_missing_here(words: tuple[str, ...]) -> bool:
    """Whether a command measures one cell that this machine cannot run."""
    if words[0] not in ("run", "trace"):
        return False
    local = Machine.local()
    planned = plan_request(read_request(words[1:]))
    return bool(planned.here) and all(feasibility(cell.spec, local) for cell in planned.here)


def smallest(verb: str, words: tuple[str, ...]) -> list[str]:
    """The words of a measured cell or sweep, on the smallest model and for as short as can be; others' as they are."""
    said = {word.lstrip("+").partition("=")[0] for word in words}
    words = tuple(word for word in words if not word.startswith("resume="))
    if verb not in ("run", "sweep", "eval", "trace", "record", "export") or _is_simulated(words):
        return list(words)
    changed = {key: value for key, value in SMALLEST.items() if _fits(key, verb, said)}
    if {"+ablation=kernels", "+ablation=peers_kernels"} & set(words):
        changed["model"] = "tiny"  # what they sweep is read off the configuration, which a checkpoint brings later
    if verb == "record":
        changed["output"] = "recorded.npz"  # the profile that others name stays that of their model
    return [word for word in words if word.partition("=")[0] not in changed] + [
        f"{key}={value}" for key, value in changed.items()
    ]


def _is_simulated(words: tuple[str, ...]) -> bool:
    """Whether all its machines are described ones."""
    machines = [word.partition("=")[2] for word in words if word.startswith("machine=")]
    return any("here" not in names.split(",") for names in machines)


def _fits(key: str, verb: str, said: set[str]) -> bool:
    """Questions are asked of a model that was trained, and only `eval` knows their number."""
    if key == "limit":
        return verb == "eval"
    if key.startswith("model"):
        return verb != "eval" and "model.path" not in said
    return verb in ("run", "sweep", "record")
