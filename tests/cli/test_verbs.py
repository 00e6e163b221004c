"""Every verb, run as a person would, on a model that loads in no time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli import VERBS, main
from ktbench.host.capabilities import machine_capabilities
from ktbench.results import read_run
from ktbench.results.log import encode
from ktbench.spec.record import Outcome
from tests.command import KTBENCH, at_home
from tests.loaded import Loader

ROOT = Path(__file__).parents[2]
pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
FEW = ("model=tiny", "workload.steps=2", "measure.min_rounds=1")
# One thread: two that wait for each other take a hundred times as long where other tests keep the cores busy.
QUICK = (*FEW, "model.layers=2", "workload.prompt=8", "measure.max_rounds=2", "engine.threads=1")
LAYER = (*FEW, "measure.max_rounds=1")
PARTS = "sweep.parts=[kernels/few_tokens,kernels/domains]"
Done = subprocess.CompletedProcess[str]
Verb = Callable[..., Done]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, loader: Loader) -> Path:
    """A folder with the run `first`, of a process of its own; what follows are calls of `main`."""
    folder = tmp_path_factory.mktemp("sweep")
    with loader.stands_in():
        done = subprocess.run(
            [*KTBENCH, "sweep", "+ablation=decode", "run_name=first", *QUICK],
            cwd=folder, env=at_home(folder), capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def ktbench(
    swept: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], loaded_children: None
) -> Verb:
    monkeypatch.chdir(swept)

    def called(*words: str) -> Done:
        code = main(words)
        return Done(words, code, *capfd.readouterr())

    return called


def test_sweep_measures_or_names_a_reason_for_every_row_of_the_papers_order(swept: Path) -> None:
    run = read_run(swept / "runs/first")
    missing = machine_capabilities()
    order = ["base", "+v", "+m", "+v+d", "+v+d+n", "+v+d+n+c"]
    if missing["avx512"] and missing["amx"]:
        order = ["base", "+a", "+a+d", "+a+d+n", "+a+d+n+c"]
    assert [cell.label for cell in run.header.cells][: len(order)] == order
    for cell in run.header.cells:
        records = run.of_cell(cell.key)
        assert all(record.outcome is Outcome.OK for record in records) or records[0].why
    assert {record.outcome for record in run.of_cell(run.header.cells[0].key)} == {Outcome.OK}


def test_sweep_names_the_files_it_wrote(swept: Path) -> None:
    names = {file.name for file in (swept / "runs/first/report").iterdir()}
    assert names == {f"table.{kind}" for kind in ("md", "csv", "json", "tex")} | {
        f"figure.{kind}" for kind in ("pdf", "svg", "png")
    } | {"page.html"}


def test_report_rebuilds_the_same_bytes(ktbench: Verb, swept: Path) -> None:
    folder = swept / "runs/first/report"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert ktbench("report", "first").returncode == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_resuming_a_finished_run_measures_nothing(ktbench: Verb, swept: Path) -> None:
    before = read_run(swept / "runs/first").records
    table = (swept / "runs/first/report/table.md").read_bytes()
    done = ktbench("sweep", "+ablation=decode", "resume=first", *QUICK)
    assert done.returncode == 0, done.stderr
    assert read_run(swept / "runs/first").records == before
    assert (swept / "runs/first/report/table.md").read_bytes() == table


def test_run_of_one_cell(ktbench: Verb) -> None:
    done = ktbench("run", *QUICK, "workload=prefill")
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout


def test_run_of_one_layer(ktbench: Verb) -> None:
    done = ktbench("run", *LAYER, "workload=layer", "engine.threads=1")
    assert done.returncode == 0, done.stderr
    assert "one MoE layer of " in done.stdout


def test_sweep_of_parts_measures_and_reports_each(ktbench: Verb, swept: Path) -> None:
    words = ("sweep.title=Two parts", "workload.batch=2", "engine.threads=1", "run_name=parts")
    done = ktbench("sweep", PARTS, *LAYER, *words)
    assert done.returncode == 0, done.stderr
    run = read_run(swept / "runs/parts")
    assert [(part.name, part.baseline, part.figure) for part in run.header.parts] == [
        ("few_tokens", "+v+d", "latency"),
        ("domains", "+v+d", "bars"),
    ]
    assert {record.cell for record in run.records} == {cell.key for cell in run.header.cells}
    names = {file.name for file in (run.folder / "report").iterdir()}
    assert {"table.md", "table-few_tokens.csv", "table-domains.csv", "figure-domains.png"} <= names
    assert done.stdout.startswith("Two parts\n")
    for part in run.header.parts:
        assert f"\n{part.title}\n" in done.stdout


def test_run_of_a_cell_that_cannot_run_here(ktbench: Verb) -> None:
    done = ktbench("run", *QUICK, "engine.avx512=true", "engine.numa=true")
    if done.returncode == 4:
        assert "UNSUPPORTED" in done.stdout
    else:
        assert done.returncode == 0, done.stderr


def test_plan_loads_nothing_and_says_bytes_and_minutes(ktbench: Verb) -> None:
    done = ktbench("plan", "+ablation=prefill")
    assert done.returncode == 0, done.stderr
    assert re.search(r"memory: [\d.]+ GiB", done.stdout)


def test_plan_of_a_sweep_of_parts_names_them_and_the_workers_of_each(ktbench: Verb) -> None:
    done = ktbench("plan", "+ablation=kernels", "model=tiny")
    assert done.returncode == 0, done.stderr
    for part in ("qwen3_layer", "deepseek_layer", "few_tokens", "scheduling", "domains"):
        assert re.search(rf"^{part}: .* \(\d+ cells\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^worker: tiny int8: .*packed [\d.]+ GiB", done.stdout, re.MULTILINE)


def test_recorded_routing_without_a_trace_is_a_row_that_says_what_to_set(ktbench: Verb) -> None:
    done = ktbench("plan", "+ablation=kernels/scheduling", "model=tiny", "sweep.arms=[+v]")
    lines = [line for line in done.stdout.splitlines() if "routing recorded" in line]
    assert len(lines) == 2
    assert all("dropped: " in line for line in lines)
    assert "workload.trace" in done.stdout or "+v: " in done.stdout


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)])
def test_help(ktbench: Verb, words: list[str]) -> None:
    done = ktbench(*words)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweeep"], "did you mean sweep"),
        (["sweep"], "name one with +ablation=NAME; allowed are accuracy_deferral, accuracy_precision, "),
        (["sweep", "+ablation=decod"], "did you mean decode"),
        (["run", "+ablation=decode"], "takes one cell"),
        (["run", "model=qwen3_235b_a22b"], "free are"),
        (["run", "+ablation=kernels"], "takes one cell"),
        (["plan", "+ablation=kernels", "sweep.arms=[base]"], "sweep.baseline='+v+d' is none of sweep.arms=['base']"),
        (["run", "workload=layer", "workload.routing=recorded", "workload.trace=nowhere.npz"], "nowhere.npz"),
        (["run", "workload=layer", "model.experts=4"], "allowed are 8 to 128"),
        (["run", "engine.deferral=9"], "engine.deferral=9: qwen3_30b_a3b has top_k=8 experts a token"),
        (["trace", "+ablation=decode"], "trace: takes one cell"),
        (["trace", *QUICK, "run_name=first"], "run_name=first: runs/first"),
        (["trace", *QUICK, "resume=first"], "trace: resume=first"),
        (["trace", "workload.steps=0"], "workload.steps=0"),
        (["run", "model.path=nowhere"], "nowhere"),
        (["report", "frist"], "did you mean first"),
        (["report", "first", "docx"], "docx"),
        (["sweep", "+ablation=decode", "resume=none"], "no such run"),
        (["sweep", "+ablation=decode", "run_name=first"], "holds a run already"),
        (["sweep", "+ablation=prefill", "resume=first", *QUICK], "planned other cells"),
        (["doctor", "now"], "now"),
    ],
)
def test_wrong_request_is_one_line_and_exit_code_2(ktbench: Verb, words: list[str], says: str) -> None:
    done = ktbench(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_run_of_other_code_is_not_resumed_unless_told(ktbench: Verb, swept: Path) -> None:
    log = swept / "runs/first/log.jsonl"
    run = read_run(swept / "runs/first")
    changed = swept / "runs/changed"
    changed.mkdir()
    header = replace(run.header, run="changed", code_id="another")
    (changed / "log.jsonl").write_bytes(encode(header) + b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
    refused = ktbench("sweep", "+ablation=decode", "resume=changed", *QUICK)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"its code was another, this is code {run.header.code_id}" in refused.stderr
    told = ktbench("sweep", "+ablation=decode", "resume=changed", "resume_changed=true", *QUICK)
    assert told.returncode == 0, told.stderr


# A verb that prints so many bytes and has found something slower.
VERB = """
import sys
from types import SimpleNamespace
from ktbench.cli import main
verb = SimpleNamespace(SUMMARY="", run=lambda words: print("x" * int(words[0])) or 3)
sys.modules["ktbench.cli.doctor"] = verb
sys.exit(main(sys.argv[1:]))
"""
LITTLE, MUCH = "10", "1000000"


def unread(*words: str) -> tuple[int, str]:
    """Exit code and stderr where nobody reads what is printed."""
    read, write = os.pipe()
    os.close(read)
    try:
        return printed_to(write, *words)
    finally:
        os.close(write)


def printed_to(stdout: int, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", VERB, *words],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.usefixtures("loaded_children")
def test_a_reader_that_has_gone_does_not_change_what_was_found() -> None:
    assert unread("doctor", LITTLE) == (3, "")
    assert unread("--help") == (0, "")


@pytest.mark.usefixtures("loaded_children")
def test_a_reader_that_goes_in_the_middle_ends_the_verb_as_a_shell_says_it() -> None:
    assert unread("doctor", MUCH) == (141, "")


@pytest.mark.usefixtures("loaded_children")
@pytest.mark.parametrize("size", [LITTLE, MUCH])
def test_output_that_a_full_disk_does_not_take_is_said_once(size: str) -> None:
    with Path("/dev/full").open("wb") as full:
        assert printed_to(full.fileno(), "doctor", size) == (4, "ktbench: No space left on device\n")
