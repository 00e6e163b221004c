"""The configuration as Hydra prints it, groups of a user's own, and jobs, held against Hydra's own command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from ktbench.cli import main
from ktbench.config import compose, freeze
from ktbench.config.app import job_files, jobs_of
from ktbench.config.keys import _DEFAULTS
from ktbench.resources import data_folder
from ktbench.results import read_run
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import PRECISIONS
from ktbench.spec.wire import to_plain

# An application of Hydra over the same files, which knows nothing of ours: all groups are in one folder.
_APP = """
import contextlib, io, json, sys
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

def node(value):
    return OmegaConf.create(value) if isinstance(value, list) else value

OmegaConf.register_new_resolver("weight_formats", lambda: node(PRECISIONS))
OmegaConf.register_new_resolver("by_device", lambda device, cpu, cuda: node(cuda if device == "cuda" else cpu))

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def app(config):
    print(json.dumps(list(HydraConfig.get().overrides.task)))

answers = []
for words in json.load(sys.stdin):
    sys.argv, said = ["app.py", *words], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app()
    answers.append(said.getvalue())
print(json.dumps(answers))
"""
SHOWN = [
    ["+ablation=decode", "--cfg", "job"],
    ["+ablation=decode", "--cfg", "job", "--resolve"],
    ["+ablation=kernels/few_tokens", "measure.max_rounds=7", "sweep.arms=[base,+v]", "workload.batch=3", "-c", "job"],
    ["+ablation=depth", "model=mixtral_8x7b", "machine=paper_a100", "--cfg", "job"],
    ["model=deepseek_v3", "--cfg", "job", "--package", "model.config"],
    ["--cfg", "hydra", "hydra.verbose=true"],
    ["+ablation=decode", "--cfg", "all"],
    ["+ablation=decode", "--info", "defaults"],
    ["+ablation=decode", "workload=prefill", "--info", "defaults-tree"],
    ["--info", "searchpath"],
    ["--info", "config"],
    ["+experiment=few", "model=mine", "--cfg", "job", "--config-dir", "OWN"],
    ["+experiment=few", "hydra.searchpath=[OWN]", "--info", "searchpath"],
    ["--info", "searchpath", "--config-dir", "OWN"],
]
SWEPT = [
    ["model=tiny,nano", "workload.batch=choice(1,2)", "engine.avx512=true"],
    ["workload.prompt=range(8,32,8)", "model=tiny"],
    ["model=glob([qwen3_30*,t*])", "precision=int8"],
    ["workload.batch=1", "workload.batch=2,3", "+experiment=few"],
    ["workload.batch=sort(3,1,2)"],
]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user's own groups."""
    folder = tmp_path_factory.mktemp("own")
    model = yaml.safe_load((data_folder("conf") / "model/tiny.yaml").read_text())
    machine = yaml.safe_load((data_folder("conf") / "machine/paper_a100.yaml").read_text())
    work = yaml.safe_load((data_folder("conf") / "workload/decode.yaml").read_text())
    files = {
        "model/mine": model | {"name": "mine", "title": "Mine"},
        "machine/box": machine | {"name": "box", "title": "A box"},
        "workload/short": work | {"prompt": 8},
        "ablation/study": {"sweep": {"name": "study", "arms": ["base", "+v"]}, "measure": {"max_rounds": 7}},
        "experiment/few": {"defaults": [{"override /workload": "prefill"}], "workload": {"prompt": 8}},
    }
    for name, content in files.items():
        head = "# @package _global_\n" if name.startswith(("ablation", "experiment")) else ""
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(head + yaml.safe_dump(content))
    return folder


@pytest.fixture(scope="module")
def hydras(tmp_path_factory: pytest.TempPathFactory, own: Path) -> dict[str, str]:
    """What Hydra prints by the words of a command line, as JSON."""
    home = tmp_path_factory.mktemp("hydra")
    conf = shutil.copytree(data_folder("conf"), home / "conf")
    for path in data_folder("ablations").rglob("*.yaml"):
        copy = conf / "ablation" / path.relative_to(data_folder("ablations"))
        copy.parent.mkdir(exist_ok=True)
        copy.write_text("# @package _global_\n" + path.read_text())
    defaults = {key: to_plain(value) for key, value in _DEFAULTS.items()}
    (conf / "spec_defaults.yaml").write_text("# @package _global_\n" + yaml.safe_dump(defaults, sort_keys=False))
    (home / "app.py").write_text(_APP.replace("PRECISIONS", repr([*PRECISIONS])))
    jobs = ["hydra/launcher=basic", "hydra/sweeper=basic", "hydra/hydra_logging=disabled", "hydra/job_logging=disabled"]
    jobs += [f"hydra.sweep.dir={home}/jobs", "hydra.sweep.subdir=.", "hydra.output_subdir=null", "--multirun"]
    asked = [[word.replace("OWN", str(own)) for word in words] for words in SHOWN]
    asked += [[f"hydra.searchpath=[{own}]", *words, *jobs] for words in SWEPT]
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=home, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    told = {json.dumps(words): text for words, text in zip([*SHOWN, *SWEPT], answers, strict=True)}
    return {words: text.replace(str(conf), "CONF").replace(str(home), "HOME") for words, text in told.items()}


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_what_is_printed_is_what_hydra_prints(
    words: list[str],
    hydras: dict[str, str],
    own: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sweep", *(word.replace("OWN", str(own)) for word in words)]) == 0
    said = capsys.readouterr().out.replace(str(data_folder("conf").resolve()), "CONF")
    assert _comparable(said) == _comparable(hydras[json.dumps(words)])
    assert len(said.splitlines()) > 3


def _comparable(text: str) -> list[str]:
    """The lines without padding, which paths make wider, and without where the command was started."""
    lines = [" ".join(line.replace("-----", "").split()).rstrip("-") for line in text.splitlines()]
    return [line for line in lines if not line.startswith("cwd:")]


@pytest.mark.parametrize("words", SWEPT, ids=" ".join)
def test_jobs_are_those_of_hydras_sweeper(words: list[str], hydras: dict[str, str], own: Path) -> None:
    told = [
        json.loads(line.replace("True", "true"))
        for line in hydras[json.dumps(words)].splitlines()
        if line.startswith("[")
    ]
    named = f"hydra.searchpath=[{own}]"
    assert [[word for word in job if word != named] for job in jobs_of([named, *words])] == told
    assert len(told) > 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "-m", "workload.batch=interval(1,2)"], "workload.batch=interval(1,2): an interval"),
        (["sweep", "workload.batch=interval(1,2)"], "workload.batch=interval(1,2): an interval"),
        (["run", "-m", "workload.batch=range(0,1000)"], "more than 256 jobs"),
        (["run", "-m", "model=glob(gtp*)"], "has no values"),
        (["run", "-m", "model=tiny,nano", "resume=latest"], "resume=latest"),
        (["trace", "-m", "model=tiny,nano"], "allowed for run, sweep, eval"),
        (["run", "model=tiny,nano"], "--multirun"),
        (["run", "--cfg", "jb"], "'job', 'hydra', 'all'"),
        (["run", "--cgf", "job"], "did you mean --cfg?"),
        (["run", "--cfg", "job", "-m"], "--cfg --multirun: name one of them"),
        (["run", "--resolve"], "goes with --cfg"),
        (["run", "--config-name", "x"], "--config-dir"),
        (["run", "--cfg", "job", "model=tiny,nano"], "model=tiny,nano: --cfg"),
        (["run", "--cfg", "job", "measure.max_round=3"], "did you mean measure.max_rounds?"),
        (["run", "--cfg", "job", "--package", "nothing"], "package 'nothing' not found"),
        (["run", "--config-dir", "nowhere", "model=tiny"], "--config-dir=nowhere: is no folder"),
        (["run", "hydra.searchpath=[nowhere]"], "nowhere is no folder"),
        (["run", "hydra.searchpath=nowhere"], "must be a list of folders"),
        (["run", "hydra.run.dir=x"], "hydra.run.dir=x: has no effect"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.count("\n") == 1 and not said.out


def test_a_configuration_is_shown_without_what_measures() -> None:
    code = "import sys; from ktbench.cli import main; main(['sweep', '+ablation=decode', '--cfg', 'job'])"
    code += "; print({'torch', 'numpy', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.fixture
def named(own: Path) -> Callable[..., list[str]]:
    return lambda *words: [f"hydra.searchpath=[{own}]", *words]


def test_groups_of_ones_own_are_options(named: Callable[..., list[str]]) -> None:
    (part,) = freeze(compose(named("+ablation=study", "model=mine", "machine=box", "workload=short"))).parts
    assert (part.spec.model.name, part.spec.workload.prompt, part.sweep.name) == ("mine", 8, "study")
    assert part.spec.machine is not None and part.spec.machine.title == "A box"
    changed = freeze(compose(named("machine=box", "machine.cores=7"))).parts[0].spec.machine
    assert changed is not None and changed.cores == 7
    swept = freeze(compose(named("machine=box,paper_a100", "model=mine,tiny"))).parts[0].sweep
    assert [one["model"]["name"] for one in swept.axes["model"]] == ["mine", "tiny"]


@pytest.mark.parametrize(
    ("file", "text", "word", "says"),
    [
        ("ablation/bare", "sweep: {name: bare}", "+ablation=bare", "# @package _global_"),
        ("ablation/bad", "# @package _global_\nsweep: {nam: bad}", "+ablation=bad", "did you mean name?"),
        ("machine/half", "name: half", "machine=half", "the key title is missing"),
        ("model/tiny", "name: tiny", "model=tiny", "an option that ships"),
        ("model/torn", "name: [", "model=torn", "torn.yaml"),
        ("model/list", "[1]", "model=list", "must be a mapping"),
        ("workload/mine", "prompt: 8", "workload=min", "did you mean mine?"),
    ],
)
def test_files_of_ones_own_are_refused_by_their_names(
    tmp_path: Path, file: str, text: str, word: str, says: str
) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / f"{file}.yaml").write_text(text)
    with pytest.raises(RequestError) as refused:
        compose([f"hydra.searchpath=[{tmp_path}]", word])
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_run_keeps_what_was_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=mine", "machine=box", "--config-dir", str(own)]
    assert main(["run", "--multirun", *words, "workload.prompt=range(8,24,8)", "run_name=job"]) == 0
    capsys.readouterr()
    runs = [read_run(tmp_path / "runs" / f"job-{number}") for number in (0, 1)]
    assert [run.header.cells[0].spec.workload.prompt for run in runs] == [8, 16]
    kept = runs[1].folder / ".hydra"
    assert main(["run", "--cfg", "job", *words, "workload.prompt=16", "run_name=job-1"]) == 0
    assert (kept / "config.yaml").read_text() == capsys.readouterr().out
    assert yaml.safe_load((kept / "overrides.yaml").read_text()) == list(runs[1].header.command[4:])


def test_lists_of_values_are_kept_as_axes() -> None:
    kept = job_files(["+ablation=decode", "precision=bf16,int8", "hydra/launcher=joblib"])
    assert OmegaConf.create(kept["config.yaml"]).sweep.axes == {"precision": ["bf16", "int8"]}
    assert yaml.safe_load(kept["overrides.yaml"])[-1] == "hydra/launcher=joblib"
