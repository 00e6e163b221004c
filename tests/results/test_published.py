"""The numbers that ship are the paper's own, every row is read whole, and what is not one is refused by line."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.cli import main
from ktbench.resources import data_folder
from ktbench.results import Log, StoreError, published_names, published_of, read_published, read_run
from ktbench.results.published import COLUMNS, read_file, require_known
from ktbench.spec.published import Confidence, Metric, Published, Subject
from ktbench.spec.record import Header, Part
from tests.tiny import tiny_cell

ALL = read_published(*published_names())
KT = "+v+m+d+n+c"
NUMBERS = {
    "fig3": 36, "fig7": 48, "fig10": 9, "fig11": 135, "fig12": 21, "fig13": 119, "fig14": 36, "table2": 24,
    "placement": 55, "concurrency": 9, "quantisation": 13, "testbed": 21, "layerwise": 12, "llamafile": 12, "sft": 18,
    "stated": 11,
}  # fmt: skip


def of(figure: str, **wanted: Any) -> list[Published]:
    return [n for n in ALL if n.figure == figure and all(getattr(n, key) == value for key, value in wanted.items())]


def value(figure: str, **wanted: Any) -> float:
    (number,) = of(figure, **wanted)
    return number.value


def written(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def cells_of(number: Published) -> list[str]:
    values = [getattr(number, column) for column in COLUMNS]
    return ["" if one is None else repr(one) if isinstance(one, float) else str(one) for one in values]


def test_every_figure_ships_with_all_of_its_numbers() -> None:
    assert {name: len(of(name)) for name in published_names()} == NUMBERS
    assert len({number.id for number in ALL}) == sum(NUMBERS.values())


def test_machines_and_models_are_those_of_the_configuration() -> None:
    for group, names in (("machine", {n.machine for n in ALL}), ("model", {n.model for n in ALL})):
        known = {path.stem for path in (data_folder("conf") / group).glob("*.yaml")}
        assert names - {""} <= known


def test_sources_ship_beside_the_numbers() -> None:
    said = (data_folder("reports") / "published" / "SOURCES.md").read_text()
    for figure, count in NUMBERS.items():
        assert f"| {figure} | {count} |" in said


@pytest.mark.parametrize(("model", "ratio"), [("deepseek_v3", 2.42), ("deepseek_v2", 3.38), ("qwen2_57b_a14b", 4.09)])
def test_decode_over_fiddler(model: str, ratio: float) -> None:
    base, kt = (value("fig12", arm=arm, model=model, precision="bf16") for arm in ("base", KT))
    assert kt / base == pytest.approx(ratio, abs=0.005)


def test_deferral_gains_up_to_45_percent_and_with_it_166_to_256_over_llama_cpp() -> None:
    gains, over = [], []
    for number in of("fig12"):
        if "deferral" in number.arm:
            where = {"model": number.model, "machine": number.machine}
            gains.append(number.value / value("fig12", arm=KT, **where))
            over.append(number.value / value("fig12", arm="llama.cpp", **where))
    assert len(gains) == 6
    assert (min(gains), max(gains)) == (pytest.approx(1.12, abs=0.006), pytest.approx(1.45, abs=0.006))
    assert (min(over), max(over)) == (pytest.approx(1.66, abs=0.005), pytest.approx(2.56, abs=0.005))


def test_prefill_at_8192_tokens_is_462_to_1974_times_as_fast() -> None:
    where = {"tokens": 8192, "machine": "paper_a100"}
    ratios = [
        value("fig11", arm=KT, model=number.model, **where) / number.value
        for number in of("fig11", **where)
        if number.arm != KT
    ]
    assert (min(ratios), max(ratios)) == (pytest.approx(4.62, abs=0.005), pytest.approx(19.74, abs=0.005))


@pytest.mark.parametrize(
    ("phase", "over", "arm", "most"),
    [
        ("prefill", "base", "+m", 3.14),
        ("prefill", "+v", "+m", 10.81),
        ("prefill", "+m", "+m+d", 1.83),
        ("prefill", "+m+d", "+m+d+n", 1.22),
        ("decode", "base", "+v", 2.22),
        ("decode", "+m", "+v", 1.20),
        ("decode", "+v+d", "+v+d+n", 1.63),
        ("decode", "+v+d+n", "+v+d+n+c", 1.23),
    ],
)
def test_largest_gains_of_the_breakdown(phase: str, over: str, arm: str, most: float) -> None:
    models = ("deepseek_v3", "deepseek_v2", "qwen2_57b_a14b")
    at = {model: {"phase": phase, "model": model} for model in models}
    gains = [value("fig14", arm=arm, **at[m]) / value("fig14", arm=over, **at[m]) for m in models]
    assert max(gains) == pytest.approx(most, abs=0.005)


def test_what_repeats_another_number_is_that_number() -> None:
    by_id = {number.id: number for number in ALL}
    repeating = [number for number in ALL if number.repeats is not None]
    assert len(repeating) == 12
    for number in repeating:
        other = by_id[number.repeats or ""]
        assert number.figure == "fig14"
        assert (number.value, number.model, number.machine) == (other.value, other.model, other.machine)


def test_kernels_cross_between_4_and_5_tokens() -> None:
    for model in ("deepseek_v3", "deepseek_v2", "qwen2_57b_a14b"):
        slower = [
            value("fig7", arm="+v+d+n", model=model, tokens=n) > value("fig7", arm="+m+d+n", model=model, tokens=n)
            for n in range(1, 9)
        ]
        assert slower == [False] * 4 + [True] * 4


def test_curves_of_the_kernels_peak_where_the_text_says() -> None:
    for number in of("fig3", tokens=None):
        curve = [n.value for n in of("fig3", arm=number.arm, settings=number.settings) if n.tokens is not None]
        assert len(curve) == 11
        assert max(curve) == pytest.approx(number.value, rel=0.035)


def test_speeds_of_fine_tuning_are_8192_tokens_over_the_seconds_of_a_step() -> None:
    for model, step_s in (("deepseek_v3", 203), ("deepseek_v2_lite", 36)):
        assert value("sft", model=model, tokens=512) == pytest.approx(8192 / step_s, abs=0.05)


def test_livebench_averages_its_six_tasks() -> None:
    scores = {number.what.split(",")[0]: number.value for number in of("fig13", metric="score")}
    average = scores.pop("LiveBench 2024-11-25 Average")
    assert len(scores) == 6
    assert mean(scores.values()) == pytest.approx(average, abs=0.1)
    assert {number.value for number in of("fig13", arm=f"{KT} skipping=8") if "Coding" in number.what} == {-100.0}


def test_numbers_that_the_text_names() -> None:
    everywhere = [n.value for n in of("placement") if n.conditions.get("engine.placement.ratio") == "1.0"]
    assert everywhere == [112.61, 112.32, 111.82, 114.26, 112.99]
    assert [n.value for n in of("placement", settings="engine.placement.policy=host")][-1] == 53.37
    rounded = [round(number.value, 1) for number in of("table2", model="deepseek_v3")]
    assert rounded == [83.0, 83.0, 71.2, 70.2, 94.8, 95.2, 83.0, 82.9]
    # The introduction compares two systems.
    assert value("fig11", arm="base", model="deepseek_v3", tokens=8192) == 70.02
    assert value("fig12", arm="llama.cpp", model="deepseek_v3", machine="paper_a100") == 4.68


words = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=20)
numbers = st.builds(
    Published,
    id=words.filter(str.strip), figure=st.just("fig"), arm=st.sampled_from(["", "base", "+v+d deferral=3", "API"]),
    machine=words, model=words, precision=words, phase=st.sampled_from(("prefill", *get_args(get_args(Subject)[1]))),
    tokens=st.none() | st.integers(1, 10**6), batch=st.integers(1, 64), settings=st.sampled_from(["", "a.b=1 c.d=x"]),
    what=words, metric=st.sampled_from(get_args(Metric)), value=st.floats(allow_nan=False, allow_infinity=False),
    source=words.filter(str.strip), confidence=st.sampled_from(get_args(Confidence)),
)  # fmt: skip


@given(st.lists(numbers, unique_by=lambda number: number.id))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, some: list[Published]) -> None:
    path = written(tmp_path_factory.mktemp("published") / "fig.csv", [COLUMNS, *map(cells_of, some)])
    assert [number for _, number in read_file(path)] == some


GOOD = Published(
    id="fig-1", figure="fig", arm="base", machine="m", model="m", precision="bf16", phase="decode", tokens=8, batch=1,
    settings="", what="", metric="ms", value=1.0, source="here", confidence="text",
)  # fmt: skip


@pytest.mark.parametrize(
    ("column", "text", "says"),
    [
        ("value", "fast", "value='fast': must be a number"),
        ("value", "nan", "must be finite"),
        ("tokens", "8.5", "tokens='8.5': must be a whole number"),
        ("batch", "", "batch='': must be a whole number"),
        ("batch", "0", "must be at least 1"),
        ("source", " ", "source is empty"),
        ("id", "", "id is empty"),
        ("arm", "+q", "arm '\\+q'.*allowed are"),
        ("metric", "miles", "metric: .*allowed are tokens/s, ms"),
        ("phase", "lunch", "phase: "),
        ("confidence", "hearsay", "confidence: .*allowed are artifact"),
        ("settings", "machine.domains", "settings: 'machine.domains' is not KEY=VALUE"),
        ("figure", "fig9", "figure='fig9': this is the file of fig"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path: Path, column: str, text: str, says: str) -> None:
    bad = [text if name == column else cell for name, cell in zip(COLUMNS, cells_of(GOOD), strict=True)]
    path = written(tmp_path / "fig.csv", [COLUMNS, cells_of(GOOD), bad])
    with pytest.raises(StoreError, match=says) as refused:
        list(read_file(path))
    assert str(refused.value).startswith(f"{path}:3: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[*COLUMNS[:-1], "colour"]], ":1: unknown column 'colour'; columns are id, figure"),
        ([COLUMNS[:-1]], ":1: columns must be, in this order"),
        ([[]], ":1: columns must be, in this order"),
        ([COLUMNS, cells_of(GOOD)[:-1]], ":2: 14 values in 15 columns"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, rows: list[list[str]], says: str) -> None:
    with pytest.raises(StoreError, match=says):
        list(read_file(written(tmp_path / "fig.csv", rows)))


def test_the_same_id_twice_and_an_unknown_figure_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "published").mkdir()
    for figure in ("fig", "gif"):
        row = cells_of(replace(GOOD, figure=figure))
        written(tmp_path / "published" / f"{figure}.csv", [COLUMNS, row])
    monkeypatch.setattr("ktbench.results.published.data_folder", lambda _: tmp_path)
    assert len(read_published("fig", "fig")) == 1
    with pytest.raises(StoreError, match=r"gif\.csv:2: id fig-1 is also in .*fig\.csv:2"):
        read_published("fig", "gif")
    with pytest.raises(StoreError, match="published=fig99: no such figure.*; allowed are fig, gif"):
        read_published("fig", "fig99")


def test_a_run_keeps_the_numbers_that_its_parts_show(tmp_path: Path) -> None:
    cell = tiny_cell(part="a")
    parts = (
        Part(name="a", title="t", baseline="base", published=("fig12", "fig10")),
        Part(name="b", title="t", baseline="base", published=("fig12",)),
        Part(name="c", title="t", baseline="base"),
    )
    header = Header(
        run="r", title="t", ablation="a", created="", command=("c",), cells=(cell,), parts=parts,
        measure=cell.spec.measure, code_id="code", env_id="env",
    )  # fmt: skip
    numbers = published_of(parts)
    log = Log(tmp_path)
    log.append(header, *numbers)
    log.close()
    assert {number.figure for number in numbers} == {"fig12", "fig10"}
    assert read_run(tmp_path).published == numbers


def test_a_log_without_published_numbers_has_none() -> None:
    recorded = next(data_folder("reports").glob("recorded/*/*/log.jsonl"))
    assert read_run(recorded.parent).published == ()


@pytest.mark.parametrize("column", ["machine", "model", "precision"])
def test_a_name_that_nothing_has_is_refused_by_file_and_line(tmp_path: Path, column: str) -> None:
    path, at = tmp_path / "fig.csv", COLUMNS.index(column)
    wrong, silent = ([*cells_of(GOOD)[:at], name, *cells_of(GOOD)[at + 1 :]] for name in ("nosuch", ""))
    written(path, [COLUMNS, wrong])
    with pytest.raises(StoreError, match=rf"^{path}:2: {column}=nosuch: unknown"):
        require_known([str(path)], {GOOD.machine}, {GOOD.model})
    written(path, [COLUMNS, silent])
    require_known([str(path)], {GOOD.machine}, {GOOD.model})


@pytest.mark.parametrize("content", [None, "id,figure\ngarbage\n", ",".join(COLUMNS) + "\n" + "x," * 14 + "\n"])
def test_a_plan_refuses_the_numbers_that_a_sweep_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    file = tmp_path / "mine.csv"
    if content is not None:
        file.write_text(content)
    words = ["model=tiny", "model.layers=2", "machine=paper_a100", "+ablation=decode", f"sweep.published=[{file}]"]
    said = []
    for verb in ("plan", "sweep"):
        assert main([verb, *words]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1] and str(file) in said[0]
