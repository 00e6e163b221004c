"""What the how-tos have readers write is what the configuration takes."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.gen.repository import DOCS
from ktbench.cli import main as ktbench
from ktbench.config.freeze import ModelFiles, freeze_model
from ktbench.eval.tasks.sources import load_task
from ktbench.results import read_run
from ktbench.results.intervals import median_interval
from ktbench.run.alternating import read_alternation
from ktbench.run.request import read_request
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.wire import from_plain
from tests.command import KTBENCH, at_home


def written(page: str) -> dict[str, Any]:
    """The YAML block of a how-to."""
    _, _, rest = (DOCS / "howto" / page).read_text(encoding="utf-8").partition("```yaml\n")
    return dict(yaml.safe_load(rest.partition("```")[0]))


def test_the_model_is_one() -> None:
    model = from_plain(freeze_model(written("model.md"), ModelFiles(), phase="decode"), ModelSpec)
    assert (model.name, model.shape.moe_layers, model.shape.experts, model.shape.top_k) == ("my_model", 4, 8, 2)


def test_the_job_compares_two_commits() -> None:
    job = written("ci.md")["jobs"]["regress"]
    *_, last = (
        shlex.split(step["run"].replace("${{ github.base_ref }}", "main")) for step in job["steps"] if "run" in step
    )
    at = last.index("--")
    assert last[:at] == ["python3", "bootstrap.py", "nox", "-s", "regress"]
    alternation = read_alternation(last[at + 1 :], "now")
    assert alternation.commits == ("origin/main", "HEAD")
    assert median_interval([1.0] * alternation.rounds).sound
    assert read_request(alternation.overrides).is_sweep


def test_the_suite_is_asked() -> None:
    pytest.importorskip("lm_eval")
    suite = from_plain(written("suite.md") | {"limit": 2}, SuiteSpec)
    assert [len(load_task(task, suite).questions) for task in suite.tasks] == [2, 2]


def test_published_numbers_stand_beside_their_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "howto" / "published.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    numbers = tmp_path / "my_numbers.csv"
    numbers.write_text(text.partition("```csv\n")[2].partition("```")[0])
    (tmp_path / "my_figure.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert ktbench(["sweep", "+ablation=my_figure.yaml", "run_name=beside"]) == 0
    numbers.unlink()
    assert ktbench(["report", "beside"]) == 0
    lines = list(csv.DictReader((tmp_path / "runs/beside/report/paper.csv").read_text().splitlines()))
    found = {line["id"]: (line["published"], bool(line["simulated"])) for line in lines if line["id"]}
    assert found == {"my_numbers-1": ("5.9", True), "my_numbers-2": ("3.0", False)}


@pytest.mark.parametrize(
    ("name", "content"),
    [("my_numbers.csv", None), ("my_numbers.csv", "id,figure\n"), ("fig12.csv", "id,figure\n"), ("x.csv", "\x00")],
)
def test_a_file_of_numbers_that_is_none_is_refused(
    name: str, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "howto" / "published.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ablation = text.partition("```yaml\n")[2].partition("```")[0].replace("my_numbers.csv", name)
    (tmp_path / "my_figure.yaml").write_text(ablation)
    if content is not None:
        (tmp_path / name).write_text(content)
    assert ktbench(["sweep", "+ablation=my_figure.yaml"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert name in said


def with_packages(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in `folder`, where the packages in its folder `site` are installed."""
    env = at_home(folder)
    env["PYTHONPATH"] += f"{os.pathsep}{folder / 'site'}"
    return subprocess.run(
        [*KTBENCH, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )


def install(folder: Path, package: str, points: str, modules: dict[str, str]) -> None:
    """What an installer leaves of a package."""
    info = folder / "site" / f"{package}-0.1.dist-info"
    info.mkdir(parents=True)
    for name, content in modules.items():
        (folder / "site" / f"{name}.py").write_text(content)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(points)


def test_a_peer_of_another_package_is_measured_and_its_record_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    page = (DOCS / "howto" / "peer.md").read_text(encoding="utf-8")
    module = page.partition("```python\n")[2].partition("```")[0]
    install(tmp_path, "my_peer", "[ktbench.peers]\nmy_peer = my_peer:PEER\n", {"my_peer": module})
    small = ("model=tiny", "workload=layer", "workload.steps=2", "engine.threads=1", "measure.max_rounds=1")
    done = with_packages(tmp_path, "run", "system=my_peer", "run_name=mine", "measure.min_rounds=1", *small)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "runs/mine")
    assert {record.outcome for record in run.of_cell(run.header.cells[0].key)} == {Outcome.OK}
    monkeypatch.chdir(tmp_path)  # here the package is not installed
    assert ktbench(["report", "mine"]) == 0
    assert ktbench(["run", "system=my_peer", *small[:2]]) == 2
    assert "llama.cpp" in capsys.readouterr().err


def test_peers_that_cannot_be_read_say_why_and_stop_nothing(tmp_path: Path) -> None:
    rows = {"fails": "1 / 0", "other": "ROW = 3", "misnamed": "ROW = Peer(name='x', title='', phases=(), types={})"}
    modules = {name: f"from ktbench.spec.peers import Peer\n{line}\n" for name, line in rows.items()}
    points = [f"{name} = {name}:ROW" for name in rows] + ["nowhere = no_such_module:ROW", "vllm = other:ROW"]
    install(tmp_path, "broken", "\n".join(["[ktbench.peers]", *points]), modules)
    listed = with_packages(tmp_path, "list", "systems")
    assert listed.returncode == 0, listed.stderr
    said = {line.split()[0]: line for line in listed.stdout.splitlines() if line.strip()}
    assert all(name in said for name in (*rows, "nowhere", "other:ROW"))
    assert "ZeroDivisionError" in said["fails"]
    assert "no_such_module" in said["nowhere"]
    assert "vLLM" in said["vllm"]
    refused = with_packages(tmp_path, "run", "system=fails", "model=tiny", "workload=layer")
    assert "ZeroDivisionError" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr


STUB_OF_MLFLOW = """
from contextlib import nullcontext
def set_experiment(name): print("experiment", name)
def start_run(run_name, nested=False): print("run", run_name); return nullcontext()
def log_params(values): print("params", values["label"], values["workload.batch"])
def log_metrics(values): print("metrics", *(float(value) for value in values.values()))
def log_artifacts(folder): print("artifacts", folder)
"""
STUB_OF_WANDB = """
from contextlib import contextmanager
class Run:
    def log(self, values): print("logged", *values)
    def log_artifact(self, folder, name, type): print("artifact", folder)
@contextmanager
def init(project, name):
    yield Run()
    print("finished", name)
def Table(dataframe): print("table", len(dataframe))
"""


@pytest.mark.usefixtures("loaded_children")
def test_trackers_of_another_package_are_told_of_a_report_and_may_fail(tmp_path: Path) -> None:
    page = (DOCS / "howto" / "tracker.md").read_text(encoding="utf-8")
    module, project = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "toml"))
    named = tomllib.loads(project)["project"]["entry-points"]["ktbench.trackers"] | {"fails": "no_such_module:told"}
    points = "\n".join(["[ktbench.trackers]", *(f"{name} = {value}" for name, value in named.items()), ""])
    modules = {"my_trackers": module, "mlflow": STUB_OF_MLFLOW, "wandb": STUB_OF_WANDB}
    install(tmp_path, "my_trackers", points, modules)
    cells = ("sweep.arms=[base,+v]", "sweep.control=false", "workload.batch=1,4")
    done = with_packages(tmp_path, "sweep", "+ablation=decode", "machine=paper_a100", "run_name=told", *cells, "--json")
    assert done.returncode == 0, done.stderr
    said = [tuple(line.split(" ", 1)) for line in done.stderr.splitlines() if " " in line]
    once = [("experiment", "ktbench"), ("run", "told"), ("table", "4"), ("logged", "rows"), ("finished", "told")]
    assert all(said.count(line) == 1 for line in once)
    assert [what for kind, what in said if kind == "params"] == ["base 1", "+v 1", "base 4", "+v 4"]
    assert [what for kind, what in said if kind in ("artifact", "artifacts")] == ["runs/told/report"] * 2
    assert len([what for kind, what in said if kind == "metrics" and float(what.split()[0]) > 0]) == 4
    assert "no_such_module" in done.stderr
    assert "Traceback" not in done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines()), "what trackers print is no part of the output"


@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "howto").glob("*.md")))
def test_files_that_a_how_to_names_are_there(page: str) -> None:
    text = (DOCS / "howto" / page).read_text(encoding="utf-8")
    named = {word for word in text.split("`")[1::2] if word.startswith(("ktbench/", "kernels/", "tests/", "conf/"))}
    assert all((DOCS.parent / name).exists() for name in named if not set(name) & set("<>* ")), named
