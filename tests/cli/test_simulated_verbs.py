"""Every verb on a machine of paper, alone and beside this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ktbench.cli import main
from ktbench.host.memory import Memory
from ktbench.results import read_run
from ktbench.run import request
from ktbench.run.request import CellPlan, plan_request, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Outcome, Record
from ktbench.spec.sweep import arm_features
from ktbench.spec.wire import to_plain
from tests.command import at_home, python_output
from tests.sim.testbed import testbed
from tests.tiny import CONFIG

ARMS = "sweep.arms=[base,+v,+v+d,+v+d+n+c,+v+l]"
CELL = ("model=tiny", "workload.prompt=8", "workload.steps=2")
BOTH = "machine=here,paper_a100"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a machine of one's own, in `box.yaml`."""
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "box", "title": "A box"}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(home: Path, run: str) -> dict[str, Record]:
    return {record.label: record for record in read_run(home / "runs" / run).records}


def planned(*words: str) -> CellPlan:
    return plan_request(read_request([*CELL, *words]))


def test_sweep_simulates_every_arm_and_reports(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *CELL, ARMS, "machine=box.yaml", "run_name=first"]) == 0
    out, err = capsys.readouterr()
    found = records(home, "first")
    assert list(found) == ["base", "+v", "+v+d", "+v+d+n+c", "+v+l"]  # no control
    assert {record.provenance for record in found.values()} == {"simulated"}
    assert found["+v+d"].outcome is Outcome.OK and len(found["+v+d"].samples_s) == 1
    assert found["+v+l"].outcome is Outcome.UNSUPPORTED
    assert "Simulated on A box by the machine model (calibration ktransformers)" in out
    assert "Machine: " not in out and "±" not in out
    assert "loading" not in err and "round" not in err
    assert {path.name for path in (home / "runs/first/report").iterdir()} >= {"table.md", "table.csv", "figure.png"}
    table = (home / "runs/first/report/table.md").read_text()
    assert "python -m ktbench run machine=box.yaml model=tiny" in table


def test_quiet_sweep_in_json_lines(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *CELL, ARMS, "machine=box.yaml", "--json", "--quiet", "run_name=lines"]) == 0
    out, err = capsys.readouterr()
    *rows, run = map(json.loads, out.splitlines())
    assert err == ""
    assert [row["label"] for row in rows] == [*records(home, "lines")]
    assert {row["provenance"] for row in rows if row["outcome"] == "OK"} == {"simulated"}
    assert run["run"] == "lines" and all(Path(name).is_file() for name in run["files"])
    assert read_run(home / "runs/lines").header.command[-1] == "run_name=lines"


def test_resume_plays_nothing_again(home: Path) -> None:
    words = ["sweep", *CELL, ARMS, "machine=box.yaml"]
    assert main([*words, "run_name=first"]) == 0
    before = read_run(home / "runs/first").records
    log = home / "runs/first/log.jsonl"
    _, *others = log.read_bytes().splitlines(keepends=True)
    lost = [line for line in others if b'"label":"+v+d"' in line]
    log.write_bytes(log.read_bytes().replace(lost[0], b""))
    assert len(read_run(home / "runs/first").records) == len(before) - 1
    assert main([*words, "resume=first"]) == 0
    after = read_run(home / "runs/first").records
    assert after[:-1] == tuple(record for record in before if record.label != "+v+d")
    assert after[-1].label == "+v+d"


def test_a_run_is_resumed_by_its_name_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log says what was swept; what is named beside the run has to be the same."""
    assert main(["sweep", "+ablation=decode", "model=tiny", "machine=box.yaml", "run_name=first"]) == 0
    before = read_run(home / "runs/first").records
    assert main(["sweep", "resume=first", "measure.max_rounds=7"]) == 0
    assert main(["sweep", "resume=latest"]) == 0
    assert read_run(home / "runs/first").records == before
    for words in (["sweep", "resume=first", "model=tiny"], ["run", "resume=first"], ["sweep", "resume=firts"]):
        assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-3:]
    assert "name one with +ablation" in said[0] and "takes one cell" in said[1] and "did you mean first?" in said[2]


def test_a_simulated_sweep_imports_no_torch(home: Path) -> None:
    words = ["sweep", *CELL, "sweep.arms=[base,+v]", "machine=paper_a100"]
    script = f"import sys; from ktbench.cli import main; code = main({words!r}); print('torch' in sys.modules, code)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=home, env=at_home(home),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["False 0"], done.stderr


def test_run_of_one_cell(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "engine.avx512=true", "machine=paper_a100", "run_name=one"]) == 0
    assert "tokens/s" in capsys.readouterr().out
    (record,) = read_run(home / "runs/one").records
    assert record.samples_s and record.work and record.notes[-1].startswith("bottleneck: ")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "engine.avx512=true", "engine.packed_dense=true", "machine=box.yaml"),
        ("run", "engine.avx512=true", "machine=paper_a100"),
        ("sweep", ARMS, BOTH),
        ("plan", "engine.avx512=true", "machine=paper_a100"),
        ("trace", "engine.avx512=true", "machine=paper_a100"),
    ],
)
def test_rules_that_are_not_simulated_are_a_wrong_request(
    words: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed(gpu=None)) | {"name": "box"}))
    assert main([words[0], *CELL, *words[1:], "inject=experts"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ktbench: inject=experts: the rule ") and err.count("\n") == 1
    assert not (home / "runs").exists()


def test_run_of_a_cell_that_the_machine_lacks_something_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "engine.avx512=true", "machine=core_14900kf_4090"]) == 4
    assert "UNSUPPORTED: +v: core_14900kf_4090 has no AVX-512" in capsys.readouterr().out


def test_trace_draws_the_simulated_step(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *CELL, "engine.avx512=true", "machine=box.yaml", "run_name=seen"]) == 0
    said = capsys.readouterr().out
    assert ", simulated." in said and "Simulated on A box by the machine model" in said
    folder = home / "runs/seen"
    assert json.loads((folder / "trace.json").read_text())["otherData"]["provenance"] == "simulated"
    assert all((folder / f"timeline.{kind}").stat().st_size for kind in ("pdf", "svg", "png"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["machine=core_14900kf_4090", "engine.avx512=true"], "UNSUPPORTED: +v: core_14900kf_4090 has no AVX-512"),
        (["machine=paper_a100", "system=llama.cpp"], "UNSUPPORTED: llama.cpp"),
    ],
)
def test_trace_of_what_is_not_simulated_is_exit_code_4(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["trace", *CELL, *words]) == 4
    assert says in capsys.readouterr().err
    assert not (home / "runs").exists()


def test_plan_counts_what_is_simulated_and_what_is_measured(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *CELL, ARMS, "machine=box.yaml"]) == 0
    said = capsys.readouterr().out
    assert "dropped: +l" in said and "engine.device=cuda" in said
    assert said.splitlines()[-1].endswith("(calibration ktransformers): 4 cells, in this process, nothing is loaded")
    assert main(["plan", *CELL, "sweep.arms=[base,+m]", BOTH]) == 0
    said = capsys.readouterr().out
    assert "2 cells, in this process" in said and "worker: tiny bf16: " in said


def test_a_model_too_large_for_this_machine_is_simulated_all_the_same() -> None:
    found = planned("model=deepseek_v3", "machine=paper_a100")
    assert found.unsupported == {} and found.runnable == () and found.needed_bytes == 0


def test_beside_simulated_cells_what_does_not_fit_here_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(total_bytes=22 * 2**30, available_bytes=22 * 2**30, limit="machine")
    monkeypatch.setattr(request, "read_memory", lambda: memory)
    found = planned("model=deepseek_v3", "sweep.arms=[base,+v+d]", BOTH)
    reasons = {cell.label: found.unsupported[cell.key] for cell in found.here}
    assert list(reasons) == ["base", "+v+d", "base (A/A)"]
    assert {why.partition(" GiB")[2] for why in reasons.values() if why.startswith("needs ")} == {", 22.0 GiB are free"}
    assert not any(cell.key in found.unsupported for cell in found.simulated)
    assert not any(cell.role == "control" for cell in found.simulated)
    with pytest.raises(RequestError, match=r"needs .* GiB .* free are 22\.0 GiB"):
        planned("model=deepseek_v3", "sweep.arms=[base]")


def test_beside_simulated_cells_missing_cuda_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.run import feasibility

    grants = {"avx2": "", "avx512": "", "amx": "", "numa": "", "cuda": "no CUDA device"}
    monkeypatch.setattr(feasibility, "machine_capabilities", lambda: grants)
    found = planned("sweep.arms=[base]", "engine.device=cuda", BOTH)
    assert {found.unsupported[cell.key] for cell in found.here} == {"engine.device=cuda: no CUDA device"}
    with pytest.raises(RequestError, match="engine.device=cuda: no CUDA device; allowed here: cpu"):
        planned("sweep.arms=[base]", "engine.device=cuda")


def test_the_ladder_of_avx2_on_machines_without_avx512() -> None:
    found = planned("+ablation=avx2", "model.layers=null", "machine=ryzen_5950x,core_14900kf_4090")
    lacking = [cell for cell in found.simulated if cell.key in found.unsupported]
    assert len(found.simulated) == 8
    assert [(cell.label, cell.spec.engine.device) for cell in lacking] == [("+a+d+l", "cuda")]


@pytest.mark.parametrize(
    ("missing", "machine", "runs"),
    [
        (("avx512", "amx"), "here", "avx2"),
        (("amx",), "here", "avx512"),
        ((), "ryzen_5950x", "avx2"),
        (("avx512", "amx"), "paper_a100", "avx512"),
    ],
)
def test_arms_of_an_ablation_run_on_the_widest_vectors_of_the_machine(
    missing: tuple[str, ...], machine: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = {name: "not there" if name in missing else "" for name in ("avx2", "avx512", "amx")}
    monkeypatch.setattr(request, "machine_capabilities", lambda: grants)
    words = ["+ablation=lean", f"machine={machine}"]
    (part,) = read_request(words).parts
    assert {arm_features(arm)[runs] for arm in part.sweep.arms} == {True}
    assert part.sweep.baseline in part.sweep.arms
    (part,) = read_request([*words, "sweep.arms=[+v+d,+v,+a]"]).parts
    assert part.sweep.arms == ("+v+d", "+v", "+a")


def test_arms_beside_published_speeds_stay_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "machine_capabilities", lambda: {"avx2": "", "avx512": "none", "amx": "none"})
    (part,) = read_request(["+ablation=paper/fig14_decode", "machine=here"]).parts
    assert "+v" in part.sweep.arms


def test_of_a_checkpoint_only_its_configuration_is_needed(home: Path) -> None:
    folder = home / "there"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = (f"model.path={folder}", "model.layers=null")
    assert planned(*words, "machine=paper_a100").unsupported == {}
    for machine in ("machine=here", BOTH):
        with pytest.raises(RequestError, match="no weights there"):
            read_request([*words, "sweep.arms=[base]", machine])


@pytest.mark.parametrize(("content", "says"), [(None, "no config.json there"), ("{", "is not JSON")])
def test_a_checkpoint_without_a_configuration_is_refused(home: Path, content: str | None, says: str) -> None:
    if content is not None:
        (home / "config.json").write_text(content)
    with pytest.raises(RequestError, match=says):
        read_request([f"model.path={home}", "machine=paper_a100"])


def test_this_machine_has_to_be_probed_before_it_is_simulated(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "machine=local"]) == 2
    said = capsys.readouterr().err
    assert "machine=local: " in said and "run `python -m ktbench probe` first" in said and said.count("\n") == 1


def test_routers_are_asked_on_this_machine_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", *CELL, "machine=paper_a100"]) == 2
    assert "record machine=paper_a100" in capsys.readouterr().err


@pytest.mark.usefixtures("loaded_children")
def test_both_kinds_in_one_sweep(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    few = ("measure.min_rounds=1", "measure.max_rounds=1", "engine.threads=1")
    assert main(["sweep", *CELL, "sweep.arms=[base]", *few, BOTH, "run_name=both"]) == 0
    found = read_run(home / "runs/both").records
    assert [(record.label, record.provenance) for record in found] == [
        ("base", "simulated"),
        ("base", "measured"),
        ("base (A/A)", "measured"),
    ]
    said = capsys.readouterr().out
    assert "machine here:" in said and "machine 2x Xeon Platinum 8452Y, A100 40 GB:" in said
    assert "| provenance" in (home / "runs/both/report/table.md").read_text()


def test_a_run_names_the_features_that_are_off(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "machine=box.yaml", "engine.avx512=true"]) == 0
    assert "off here: +m +d +n +c; engine.best=true" in capsys.readouterr().err


def test_a_run_with_the_best_settings_has_every_feature(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "machine=box.yaml", "engine.best=true", "run_name=best"]) == 0
    assert set(records(home, "best")) == {"+v+m+d+n+c"}
    assert "off here" not in capsys.readouterr().err


def test_best_is_true_or_false(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *CELL, "engine.best=often"]) == 2
    assert capsys.readouterr().err.endswith("engine.best=often: allowed are true and false\n")


def test_keys_and_values_that_do_not_fit_on_the_gpu_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """64 requests of 160,000 tokens: 61 layers of 576 numbers of two bytes each, 670 GiB."""
    words = ("model=deepseek_v3", "model.layers=null", "precision=int4_g32", "device_precision=int4_g32")
    cell = (*words, "machine=xeon_6454s_4090d", "engine.avx512=true", "workload.batch=64", "workload.prompt=160000")
    assert main(["run", *cell]) == 4
    nbytes = 64 * 160_000 * 61 * 576 * 2
    assert f"a cache of {nbytes / 2**30:,.0f} GiB" in capsys.readouterr().out


def test_a_context_beyond_the_models_positions_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=deepseek_v3", "machine=paper_a100", "engine.avx512=true", "workload.prompt=1000000")
    assert main(["run", *words]) == 4
    assert "163,840 tokens" in capsys.readouterr().out


# A fresh clone before the kernels are compiled, in an environment without PyTorch.
BARE = """
import sys
for name in ("torch", "transformers", "ktbench._kernels"):
    sys.modules[name] = None
from ktbench.cli import main
for words in (
    ["advise", "cpu=EPYC 9355", "ram=12x64 DDR5-6400", "gpu=RTX 4090", "model=deepseek_v2_lite", "context=512"],
    ["plan", "+ablation=decode"],
    ["sweep", "+ablation=decode", "machine=paper_a100", "model=tiny", "sweep.arms=[base,+v]"],
):
    code = main(words)
    print(f"{words[0]} ended with {code}", flush=True)
"""


def test_advice_plans_and_simulations_need_neither_pytorch_nor_the_kernels(home: Path) -> None:
    said = python_output(BARE)
    for verb in ("advise", "plan", "sweep"):
        assert f"{verb} ended with 0" in said
    assert "the kernel extension is not built" in said  # what of the plan cannot run, and why
