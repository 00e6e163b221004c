"""The verbs as functions: frames agree with the store, and refusals with those of the command line."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

import ktbench
from ktbench.api import Result
from ktbench.results import Run
from ktbench.spec.record import Outcome
from tests.command import python_output
from tests.report.accuracy_stores import SMALL
from tests.report.synthetic import Arm, Store

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "reports" / "recorded" / "granite_rapids_2_cores" / "decode"
ARMS = (
    Arm(label="base", step_ms=40.0),
    Arm(label="+v", step_ms=20.0),
    Arm(label="+m", outcome=Outcome.UNSUPPORTED, why="this processor has no AMX"),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return Result(run=Store(arms=ARMS, rounds=6).write(tmp_path_factory.mktemp("store")))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, ktbench; print(sorted({'torch', 'pandas', 'numpy', 'hydra'} & sys.modules.keys()))"
    assert python_output(code).strip() == "[]"


def test_reading_a_run_does_without_torch() -> None:
    code = f"import sys, ktbench; ktbench.load({str(RECORDED)!r}).rows; print('torch' in sys.modules)"
    assert python_output(code).strip() == "False"


def test_a_row_for_each_cell_as_the_csv_has_it(measured: Result) -> None:
    rows = measured.rows
    assert list(rows["cell"]) == [cell.key for cell in measured.run.header.cells]
    assert list(rows["label"]) == ["base", "+v", "+m", "base (A/A)"]
    (path,) = measured.report("csv")
    written = pd.read_csv(io.StringIO(path.read_text()))
    for name in ("step_s", "step_s_low", "step_s_high", "tokens_per_s", "speedup", "speedup_low"):
        pd.testing.assert_series_equal(rows[name], written[name])
    assert set(rows["provenance"].dropna()) == {"measured"}
    assert "AMX" in rows.set_index("label").loc["+m", "why"]
    assert pd.isna(rows.set_index("label").loc["+m", "step_s"])


def test_a_row_for_each_sample(measured: Result) -> None:
    stored = [s for cell in measured.run.header.cells for one in measured.run.of_cell(cell.key) for s in one.samples_s]
    samples = measured.samples
    assert list(samples["step_s"]) == stored
    assert set(samples["label"]) == {"base", "+v", "base (A/A)"}
    of_base = samples[samples["label"] == "base"]
    medians = of_base.groupby("round")["step_s"].median()
    assert median(medians) == pytest.approx(measured.rows.set_index("label").loc["base", "step_s"])
    assert set(samples["cell"]) <= set(measured.rows["cell"])
    assert set(samples["provenance"]) == {"measured"}


def test_frames_name_their_run(measured: Result) -> None:
    assert measured.rows.attrs["run"] == measured.samples.attrs["run"] == measured.name


def test_parquet_keeps_values_and_types(measured: Result, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    written = {path.stem: path for path in measured.to_parquet(tmp_path)}
    assert written.keys() == {"rows", "samples"}
    for name, path in written.items():
        frame = getattr(measured, name)
        pd.testing.assert_frame_equal(pd.read_parquet(path), frame, check_dtype=False)
    assert pd.read_parquet(written["rows"])["rounds"].sum() == measured.rows["rounds"].sum()


def test_figures_by_name(measured: Result) -> None:
    assert measured.figures == ("figure",)
    picture, size = measured.figure()._repr_png_()  # type: ignore[attr-defined]
    assert picture.startswith(b"\x89PNG")
    assert size["width"] > 0
    with pytest.raises(ktbench.RequestError, match="allowed are figure"):
        measured.figure("bars")


def test_a_notebook_shows_the_table(measured: Result) -> None:
    shown = measured._repr_markdown_()
    assert all(f"| {label} " in shown for label in ("base", "+v", "+m"))
    assert measured.markdown.startswith("# ")


def test_scores_and_answers_of_an_evaluation(small: Run) -> None:
    result = Result(run=small)
    assert len(result.answers) == sum(len(answers) for answers in small.answers().values())
    averages = result.scores[result.scores["kind"] == "average"]
    assert set(averages["label"]) == set(result.rows["label"])
    of_task = result.answers[(result.answers["metric"] == "score")].groupby(["label", "task"])["value"].mean()
    tasks = result.scores[(result.scores["kind"] == "task") & (result.scores["metric"] == "score")]
    for label, task, value in zip(tasks["label"], tasks["subject"], tasks["value"], strict=True):
        assert of_task[label, task] == pytest.approx(value)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return SMALL.write(tmp_path_factory.mktemp("small"))


def test_of_a_sweep_there_are_no_scores(measured: Result) -> None:
    assert measured.scores.empty
    assert measured.answers.empty
    assert measured.published.empty


def test_one_cell_simulated(here: Path) -> None:
    one = ktbench.simulate("paper_a100", model="deepseek_v3", engine={"avx512": True, "dynamic": True})
    assert list(one.rows["provenance"]) == ["simulated"]
    assert one.rows["tokens_per_s"].iloc[0] == pytest.approx(1 / one.samples["step_s"].iloc[0])
    assert ktbench.load(one.name).rows.equals(one.rows)
    assert one.run.header.command[3:] == (
        "run",
        "machine=paper_a100",
        "model=deepseek_v3",
        "engine.avx512=true",
        "engine.dynamic=true",
    )


def test_an_ablation_beside_published_numbers(here: Path) -> None:
    both = ktbench.simulate("paper_a100", "paper/fig14", "sweep.arms=[base]", "sweep.baseline=base")
    assert set(both.published["provenance"]) == {"published", "simulated"}
    assert (both.published["unit"] == "tokens/s").all()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: ktbench.sweep("decod"), "did you mean decode"),
        (lambda: ktbench.sweep(model="tiny"), "allowed are accuracy_deferral"),
        (lambda: ktbench.run("+ablation=decode"), "takes one cell"),
        (lambda: ktbench.run(engine={"avx51": True}), "did you mean engine.avx512"),
        (lambda: ktbench.simulate("here"), "machine=here"),
        (lambda: ktbench.evaluate("nan"), "nano"),
        (ktbench.evaluate, "allowed are drift"),
        (lambda: ktbench.load("nowhere"), "no such run"),
    ],
)
def test_a_wrong_request_says_what_is_allowed(here: Path, ask: object, says: str) -> None:
    with pytest.raises(ktbench.RequestError, match=says):
        ask()  # type: ignore[operator]
    assert not list(here.iterdir())


def test_the_package_run_is_the_function_too(here: Path) -> None:
    import ktbench.run.execute

    with pytest.raises(ktbench.RequestError, match="takes one cell"):
        ktbench.run("+ablation=decode")


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="measure"):
        ktbench.measure  # noqa: B018
    assert set(ktbench.__all__) <= set(dir(ktbench))
