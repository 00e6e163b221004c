"""The archive of a run: whole, checkable, the same again, and its script does what the run did."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from ktbench.report.exchange.artifact import inputs_of, write_artifact
from ktbench.results import Run
from ktbench.spec.errors import RequestError
from ktbench.spec.peers import PeerSpec
from ktbench.spec.wire import digest
from tests.report.synthetic import Store

OPERATOR = "class Experts:\n    pass\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose command names files, in the folder that ktbench runs in."""
    monkeypatch.chdir(tmp_path)
    stored = Store(run="stored", rounds=2).write(tmp_path / "runs")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sweep.yaml").write_text("sweep: {name: mine}\n")
    (tmp_path / "mine" / "operator.py").write_text(OPERATOR)
    command = (
        "python",
        "-m",
        "ktbench",
        "sweep",
        "+ablation=mine/sweep.yaml",
        "run_name=stored",
        "measure.max_rounds=2",
    )
    peer = PeerSpec(implementation="own", operator="mine/operator.py", operator_id=digest(OPERATOR))
    first, *others = stored.header.cells
    cells = (replace(first, spec=replace(first.spec, system="transformers", peer=peer)), *others)
    return replace(stored, header=replace(stored.header, command=command, cells=cells))


def unpacked(run: Run, folder: Path) -> Path:
    """The folder of what is in the archive of a run."""
    table = run.folder / "report" / "table.md"
    table.parent.mkdir(exist_ok=True)
    table.write_text("a table\n")
    with ZipFile(write_artifact(folder / "artifact.zip", run, (), [table])) as archive:
        archive.extractall(folder)
    return folder / "stored"


def test_it_holds_what_was_measured_and_the_files_that_the_command_names(run: Run, tmp_path: Path) -> None:
    found = unpacked(run, tmp_path / "out")
    assert (found / "log.jsonl").read_bytes() == (run.folder / "log.jsonl").read_bytes()
    assert (found / "inputs" / "mine" / "sweep.yaml").read_text() == "sweep: {name: mine}\n"
    assert (found / "inputs" / "mine" / "operator.py").read_text() == OPERATOR
    assert (found / "report" / "table.md").read_text() == "a table\n"
    machines = json.loads((found / "machine.json").read_text())
    assert [one["commit"] for one in machines] == [run.environments[0].facts["commit"]]


def test_every_file_has_its_checksum(run: Run, tmp_path: Path) -> None:
    found = unpacked(run, tmp_path / "out")
    lines = (line.split("  ") for line in (found / "SHA256SUMS").read_text().splitlines())
    sums = {name: value for value, name in lines}
    files = {path.relative_to(found).as_posix(): path for path in found.rglob("*") if path.is_file()}
    assert sums.keys() == files.keys() - {"SHA256SUMS"}
    assert sums == {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in sums}


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    written = [write_artifact(tmp_path / name, run, (), ()) for name in ("one.zip", "other.zip")]
    assert written[0].read_bytes() == written[1].read_bytes()


@pytest.mark.parametrize("content", [OPERATOR.encode() + b"# faster\n", b"\xff", None], ids=["other", "bytes", "gone"])
def test_an_operator_that_is_not_the_one_measured_is_refused(run: Run, tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        Path("mine/operator.py").unlink()
    else:
        Path("mine/operator.py").write_bytes(content)
    with pytest.raises(RequestError, match=r"mine/operator\.py"):
        write_artifact(tmp_path / "artifact.zip", run, (), ())
    assert not (tmp_path / "artifact.zip").exists()


def test_a_log_cannot_put_commands_into_the_script_nor_files_beside_the_archive(run: Run, tmp_path: Path) -> None:
    facts = run.environments[0].facts | {"commit": "abc; touch hurt"}
    environments = (replace(run.environments[0], facts=facts),)
    header = replace(run.header, run="../../hurt", created="1970-01-01T00:00:00+00:00")
    path = write_artifact(tmp_path / "artifact.zip", replace(run, header=header, environments=environments), (), ())
    with ZipFile(path) as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"stored"}
        assert "checkout --quiet 'abc; touch hurt'" in archive.read("stored/run.sh").decode()


def test_links_in_the_folder_of_a_run_are_not_followed(
    run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_text("a key")
    (run.folder / "changes-0.diff").symlink_to(secret)
    packed = unpacked(run, tmp_path / "out")
    assert not any(file.read_bytes() == b"a key" for file in packed.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", ["{outside}/secret", "../secret", "mine/link"])
def test_a_log_cannot_pack_files_from_elsewhere(
    run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("a key")
    (tmp_path / "below").mkdir()
    shutil.move(tmp_path / "mine", tmp_path / "below" / "mine")
    (tmp_path / "secret").write_text("a key")
    (tmp_path / "below" / "mine" / "link").symlink_to(outside / "secret")
    monkeypatch.chdir(tmp_path / "below")
    path = name.format(outside=outside)
    foreign = replace(run, header=replace(run.header, command=(*run.header.command, f"workload.trace={path}:ids")))
    inputs = {one.path: one for one in inputs_of(foreign)}
    assert inputs[path].why
    assert inputs[path].sha256 == hashlib.sha256(b"a key").hexdigest()
    packed = unpacked(foreign, tmp_path / "out")
    assert not any(file.read_bytes() == b"a key" for file in packed.rglob("*") if file.is_file())
    assert path in (packed / "README.md").read_text()


def test_the_script_sets_up_the_commit_with_its_changes_and_repeats_the_command(run: Run, tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    origin = tmp_path / "origin"
    origin.mkdir()

    def of_origin(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run([git, "-C", str(origin), *identity, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    # Stands for ours: it says where and with what it was called, and holds a line that the patch changes.
    program = "import os, sys\nprint(os.getcwd(), *sys.argv[1:])\n# as committed\n"
    (origin / "bootstrap.py").write_text(program)
    of_origin("init", "--quiet")
    of_origin("add", ".")
    of_origin("commit", "--quiet", "-m", "begin")
    commit = of_origin("rev-parse", "HEAD")
    (origin / "bootstrap.py").write_text(program.replace("as committed", "as measured"))
    (run.folder / "changes-0.diff").write_text(of_origin("diff") + "\n")
    of_origin("commit", "--quiet", "-am", "go on")
    facts = run.environments[0].facts | {"commit": commit, "dirty": True}
    measured = replace(run, environments=(replace(run.environments[0], facts=facts),))
    found = unpacked(measured, tmp_path / "out")

    done = subprocess.run(["bash", "run.sh", str(origin)], cwd=found, check=True, capture_output=True, text=True)
    assert (found / "code" / "bootstrap.py").read_text().endswith("# as measured\n")
    sweep, compare = done.stdout.splitlines()
    inputs = found / "inputs"
    assert sweep == (f"{inputs} python -m ktbench sweep +ablation=mine/sweep.yaml measure.max_rounds=2 run_name=again")
    assert compare == f"{inputs} python -m ktbench compare {found} again different_machines=true"

    (found / "log.jsonl").write_text("another log\n")
    damaged = subprocess.run(["bash", "run.sh", str(origin)], cwd=found, check=False, capture_output=True, text=True)
    assert damaged.returncode != 0
    assert "log.jsonl" in damaged.stdout + damaged.stderr
