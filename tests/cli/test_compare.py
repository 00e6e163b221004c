"""`compare`: exit codes, refusals in one line, and runs found by the commit that they measured."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.cli import compare, main
from ktbench.spec.record import Outcome
from tests.report.accuracy_stores import BASE, FOUR, Answering, AnswerStore
from tests.report.comparison_runs import ARMS, HOUR_S, at_commit, kept, on_machine, run_of
from tests.report.synthetic import Arm

OLD, NEW = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two commits, of another machine and of another model below `runs/`."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "runs"
    slowed = tuple(replace(arm, step_ms=1.3 * arm.step_ms) for arm in ARMS)
    at_commit(run_of(folder, "old"), OLD)
    at_commit(run_of(folder, "new", arms=slowed, begun_s=HOUR_S), NEW, created="2026-01-02T00:00:00+00:00")
    at_commit(run_of(folder, "prefill", begun_s=HOUR_S), NEW, created="2026-01-03T00:00:00+00:00", ablation="prefill")
    at_commit(run_of(folder, "changed", begun_s=2 * HOUR_S), "c" * 40, dirty=True)
    on_machine(run_of(folder, "elsewhere", begun_s=HOUR_S), "0123456789ab", "AMD EPYC")
    at_commit(run_of(folder, "layers", rounds=1), "e" * 40, ablation="kernels")
    run_of(folder, "longer", prompts=(512,))
    return home


@pytest.fixture
def home(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(runs)
    return runs


def test_a_run_against_itself_is_all_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "old", "runs/old"]) == 0
    out, err = capsys.readouterr()
    assert "0 faster, 0 slower, 3 same, 0 unsure of 3 cells timed in both." in out and err == ""
    written = [f"wrote runs/old/report/compare-old.{ending}" for ending in ("md", "csv", "json")]
    assert out.splitlines()[-3:] == written
    assert out.startswith((home / "runs/old/report/compare-old.md").read_text())


def test_slower_cells_are_exit_code_3(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "old", "new"]) == 3
    assert "0 faster, 3 slower, 0 same" in capsys.readouterr().out
    assert main(["compare", "new", "old"]) == 0
    assert main(["compare", "old", "new", "tolerance=0.5"]) == 0


def test_too_few_rounds_do_not_pass_for_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However much slower they are."""
    monkeypatch.chdir(tmp_path)
    slow = tuple(replace(arm, step_ms=30 * arm.step_ms) for arm in ARMS)
    at_commit(run_of(tmp_path / "runs", "few", rounds=2), OLD)
    at_commit(run_of(tmp_path / "runs", "slow", rounds=2, arms=slow, begun_s=HOUR_S), NEW)
    assert main(["compare", "few", "slow"]) == 4
    assert capsys.readouterr().err.count("\n") == 1


BAD = (Outcome.WRONG, Outcome.CRASHED, Outcome.IDLE, Outcome.VACUOUS, Outcome.NO_MEMORY)


@pytest.mark.parametrize("outcome", BAD)
@pytest.mark.parametrize("bad", [1, len(ARMS)])
def test_what_a_timed_and_b_did_not_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, bad: int
) -> None:
    """One cell or all of them: of a change that breaks the kernels, no time is left to compare."""
    monkeypatch.chdir(tmp_path)
    broken = (*ARMS[:-bad], *(Arm(label=arm.label, outcome=outcome, why="kernel differs") for arm in ARMS[-bad:]))
    run_of(tmp_path / "runs", "good")
    run_of(tmp_path / "runs", "broken", arms=broken, begun_s=HOUR_S)
    assert main(["compare", "good", "broken"]) == 4
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and "+v+d" in err and f"{outcome}: kernel differs" in err
    assert out.index("kernel differs") < out.index("|"), "named before the table"
    content = json.loads((tmp_path / "runs/broken/report/compare-good.json").read_text())
    assert [*content["lost"]] == [arm.label for arm in ARMS[-bad:]]


@pytest.mark.parametrize(("step_ms", "noise", "code"), [(61.0, 0.3, 4), (60.5, 0.02, 0), (55.0, 0.03, 0)])
def test_what_may_be_slower_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ms: float, noise: float, code: int
) -> None:
    """Under noise that hides a slowdown a gate knows nothing; it does where the whole interval is above one."""
    monkeypatch.chdir(tmp_path)
    for number, ms in enumerate((61.0, step_ms)):
        arms = (replace(ARMS[0], noise=0.002), replace(ARMS[1], step_ms=ms, noise=noise))
        run_of(tmp_path / "runs", f"run{number}", arms=arms, begun_s=HOUR_S * number)
    assert main(["compare", "run0", "run1"]) == code


def test_a_cell_that_b_does_not_have_is_no_pass_and_comes_before_a_slower_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "runs", "all")
    run_of(tmp_path / "runs", "fewer", arms=(ARMS[0], replace(ARMS[1], step_ms=2 * ARMS[1].step_ms)), begun_s=HOUR_S)
    assert main(["compare", "all", "fewer"]) == 4
    assert "+v+d" in capsys.readouterr().err
    assert main(["compare", "fewer", "all"]) == 0, "what B has beyond A is no loss"


def test_what_no_run_timed_is_nothing_to_judge_and_passes_beside_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lacking = Arm(label="+m", outcome=Outcome.UNSUPPORTED, why="no AMX")
    run_of(tmp_path / "runs", "none", arms=(replace(lacking, label="base"), lacking))
    assert main(["compare", "none", "none"]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    run_of(tmp_path / "runs", "beside", arms=(*ARMS, lacking))
    assert main(["compare", "beside", "beside"]) == 0


@pytest.mark.parametrize("task", ["", FOUR.tasks[0].name])
def test_answers_that_are_missing_are_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Of an evaluation no cell is timed, what is compared are its answers: those of one task, or of all (`""`)."""
    monkeypatch.chdir(tmp_path)
    arms = (BASE, Answering(label="+v"))
    AnswerStore(suite=FOUR, arms=arms, run="both").write(tmp_path / "runs")
    crashed = (BASE, replace(arms[1], ends={task: (Outcome.CRASHED, "killed by signal 9")}))
    AnswerStore(suite=FOUR, arms=crashed, run="one").write(tmp_path / "runs")
    assert main(["compare", "both", "both"]) == 0
    assert main(["compare", "both", "one"]) == 4


def test_other_machines_are_compared_knowingly_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "old", "elsewhere"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "3e35237a811c" in err and "0123456789ab" in err and "different_machines=true" in err
    assert main(["compare", "old", "elsewhere", "different_machines=true"]) in (0, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name two runs"),
        (["old"], "not 1"),
        (["old", "new", "old"], "not 3"),
        (["old", "nwe"], "nwe: no such run, did you mean new?"),
        (["old", "new", "tolerance=much"], "tolerance=much: must be a number from 0 up to 1"),
        (["old", "new", "tolerance=-0.1"], "tolerance=-0.1: must be a number"),
        (["old", "new", "tolerance=nan"], "tolerance=nan: must be a number"),
        (["old", "new", "different_machines=maybe"], "different_machines=maybe: allowed are true and false"),
        (["old", "new", "margin=0.1"], "margin=0.1: unknown key; allowed are different_machines, tolerance"),
        (["old", "longer"], "no cell is in both runs (4 of old and 4 of longer)"),
    ],
)
def test_bad_requests_end_with_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["compare", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs/longer/report").write_text("in the way")
    assert main(["compare", "longer", "longer"]) == 2
    assert "compare: nothing can be written to runs/longer/report" in capsys.readouterr().err


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are what git would know, without a checkout."""
    names = {"HEAD~1": OLD, "HEAD": NEW, "dirty": "c" * 40, "fresh": "d" * 40}
    monkeypatch.setattr(compare, "_commit", names.get)


def test_commits_are_their_newest_runs_of_the_same_ablation(
    home: Path, known: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "HEAD~1", "HEAD"]) == 3
    assert capsys.readouterr().out.startswith("# new (B) compared with old (A)")
    assert main(["compare", "HEAD~1", "new"]) == 3
    assert main(["compare", "HEAD", "HEAD"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("prefill/report/compare-prefill.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["HEAD", "fresh"], f"compare fresh: no run is of commit {'d' * 12}; name another, or measure both with: nox"),
        (["HEAD", "dirty"], "but changed, which has changes on top of it"),
        (["HEAD", "layers"], "runs of HEAD swept prefill, decode, those of layers kernels; name two runs"),
        (["HEAD", "gone"], "gone: no such run"),
    ],
)
def test_commits_without_runs_lead_to_the_session_that_measures_them(
    home: Path, known: None, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_commits_are_resolved_by_git_or_taken_for_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "checkout", lambda: tmp_path)
    assert compare._commit("0123456") == "0123456"
    assert compare._commit("HEAD") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert compare._commit("HEAD") == compare._commit(sha[:8]) == sha
    assert compare._commit("nowhere") is None
    assert compare._commit("--all") is None


def test_a_run_without_a_commit_is_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.results.find import origins_of, read_origin

    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "runs", "bare", rounds=1)
    environments = tuple(replace(one, facts={**one.facts, "commit": None}) for one in run.environments)
    kept(replace(run, environments=environments))
    assert read_origin(run.folder).commit == ""
    assert origins_of("6") == []
    (tmp_path / "runs/bare/log.jsonl").write_bytes(b"")
    assert origins_of("") == []


def test_features_that_are_not_known_here_go_by_their_recorded_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a log of a fork, which defers experts below a gate weight."""
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "runs", "fork")
    log = run.folder / "log.jsonl"
    log.write_bytes(b"".join(_of_a_fork(json.loads(line)) for line in log.read_bytes().splitlines()))
    shutil.copytree(run.folder, tmp_path / "runs" / "again")
    assert main(["compare", "fork", "again"]) == 0
    assert "gate_threshold=0.3" in capsys.readouterr().out
    assert main(["report", "fork", "md", "csv", "json", "tex", "html"]) == 0
    table = (tmp_path / "runs/fork/report/table.md").read_text()
    row = next(line for line in table.splitlines() if line.startswith("| +v+d gate_threshold=0.3 "))
    assert "low_gates 5/step" in row and table.count("low_gates") == 1
    again = next(line for line in table.splitlines() if "engine.gate_threshold=0.3" in line)
    assert main(shlex.split(again)[3:]) == 2 and "gate_threshold" in capsys.readouterr().err
    assert main(["sweep", "model=tiny", "sweep.arms=[base,gate_threshold=0.3]"]) == 2
    assert "gate_threshold" in capsys.readouterr().err


def _of_a_fork(line: dict[str, Any]) -> bytes:
    """A line of a log whose last arm is another feature's."""
    body, label = line["body"], f"{ARMS[-1].label} gate_threshold=0.3"
    named = [one for one in (body, *body.get("cells", ())) if one.get("label") == ARMS[-1].label]
    for one in named:
        one["label"] = label
        if "spec" in one:
            one["spec"]["engine"]["gate_threshold"] = 0.3
    if "evidence" in body:
        asked, seen = (0.3, 5) if named else (0.0, 0)
        body["evidence"] += [{"feature": "gate_threshold", "asked": asked, "counter": "low_gates", "seen": seen}]
    facts = {name: line[name] for name in ("schema", "kind", "body")}
    content = json.dumps(facts, sort_keys=False, separators=(",", ":"))[1:].encode()
    return b'{"crc":%d,%b\n' % (zlib.crc32(content), content)
