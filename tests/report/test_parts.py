"""Sweeps of several parts and of single layers: tables, groups across precisions, units."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.report.documents import page_of
from ktbench.report.latex import latex
from ktbench.report.terminal import row_line
from ktbench.report.write import write_report
from ktbench.results import Run
from ktbench.results.row import groups_of
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of, the_part
from ktbench.results.settings import TOKENS, varying
from ktbench.results.speedups import Verdict
from tests.report.layers import EXPERT_WEIGHTS, TOP_K, LayerArm, LayerPart, LayerStore
from tests.report.reading import column, headings, row, table
from tests.report.synthetic import Store
from tests.report.test_golden import FORMATS, KERNELS

THROUGHPUT, _ = KERNELS.parts


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return KERNELS.write(tmp_path)


def test_a_run_of_one_part_is_its_own_part(tmp_path: Path) -> None:
    run = Store().write(tmp_path)
    assert parts_of(run) == (run,)
    assert page_of(run).startswith("# Decode breakdown\n")


def test_each_part_is_a_run_with_its_title_cells_and_records(run: Run) -> None:
    first, second = parts_of(run)
    assert (first.header.title, second.header.title) == ("Throughput", "Domains")
    assert [the_part(part).baseline for part in (first, second)] == ["base", "+v+d"]
    assert {cell.part for cell in second.header.cells} == {"domains"}
    assert len(first.records) + len(second.records) == len(run.records)
    assert {record.cell for record in second.records} == {cell.key for cell in second.header.cells}
    assert rows_of(first) + rows_of(second) == rows_of(run)


def test_the_same_spec_in_two_parts_is_two_rows_with_two_baselines(tmp_path: Path) -> None:
    """The very cell +v+d stands in both parts: once held against base, once the baseline itself."""
    again = LayerPart(name="again", arms=(LayerArm(label="+v+d"), LayerArm(label="+v")), tokens=(1,))
    rows = rows_of(LayerStore(parts=(THROUGHPUT, again)).write(tmp_path))
    first, second = (found for found in rows if found.label == "+v+d" and found.spec.tokens_per_expert == 1)
    assert first.spec_id == second.spec_id and first.cell != second.cell
    assert (first.is_baseline, second.is_baseline) == (False, True)
    assert first.speedup is not None and first.speedup.mid == pytest.approx(3.0, rel=0.02)
    assert len(groups_of(rows)) == 3


def test_every_part_has_its_files_and_the_page_holds_them_all(run: Run) -> None:
    written = [path.name for path in write_report(run, FORMATS)]
    own = [f"table-{part}.{suffix}" for suffix in FORMATS for part in ("throughput", "domains")]
    assert written == ["table.md", *own]
    page = (run.folder / "report" / "table.md").read_text()
    assert page == page_of(run)
    assert page.index("# MoE kernels") < page.index("## Throughput\n") < page.index("## Domains\n")
    assert page.count("(figure-throughput.png)") == page.count("(figure-domains.png)") == 1
    assert r"{figure-domains.pdf}" in latex(table(parts_of(run)[1]))


def test_rows_of_one_point_are_one_group_whatever_their_precision(run: Run) -> None:
    rows = rows_of(parts_of(run)[0])
    groups = groups_of(rows)
    assert [[found.label for found in group] for group in groups] == [
        [*(arm.label for arm in THROUGHPUT.arms), "base (A/A)"],
    ] * 2
    assert "precision" not in rows[0].settings


def test_base_in_bf16_is_the_baseline_of_all_precisions(run: Run) -> None:
    """At one token per expert int8 reads half the bytes at 0.45 of the roof where base has 0.3: 2 × 0.45 / 0.3."""
    found = row(parts_of(run)[0], "+v int8").speedup
    assert found is not None and found.mid == pytest.approx(3.0, rel=0.02)


def test_gains_stay_within_one_precision(run: Run) -> None:
    rows = rows_of(parts_of(run)[0])
    gains = {found.label: found.gain and (found.gain.over, round(found.gain.ratio.mid, 1)) for found in rows[:7]}
    assert gains == {
        "base": None,
        "+v": ("base", 2.0),
        "+v+d": ("+v", 1.5),
        "+v int8": None,
        "+v+d int8": ("+v int8", 2.0),
        "+m int4_g32": None,
        "base (A/A)": None,
    }
    assert row(parts_of(run)[0], "+v+d int8").gain.verdict is Verdict.FASTER  # type: ignore[union-attr]


def test_a_layer_is_shown_in_the_units_of_kernels(run: Run) -> None:
    found = table(parts_of(run)[0])
    rows = rows_of(parts_of(run)[0])
    for label, unit, stored in (("+v+d", "TFLOPS", 2), ("+v+d int8", "TOPS", 1)):
        cells = found.cells[[r.label for r in rows].index(label)]
        step_s = row(parts_of(run)[0], label, 1).step_s.mid  # type: ignore[union-attr]
        assert cells[4] == f"{2 * EXPERT_WEIGHTS * TOP_K / step_s / 1e12:.4f} {unit}"
        assert cells[5] == f"{TOP_K * EXPERT_WEIGHTS * stored / step_s / 1e9:.1f}"


def test_one_unit_stands_in_the_heading(tmp_path: Path) -> None:
    arms = (LayerArm(label="+v int8"), LayerArm(label="+v+d int8"))
    int8 = LayerStore(parts=(LayerPart(arms=arms, tokens=(1, 2)),)).write(tmp_path)
    assert "arithmetic (TOPS)" in headings(table(int8))
    assert any("precision as the arms name it" in sentence for sentence in table(int8).conditions)


def test_logical_domains_are_called_so_wherever_the_arm_is_shown(run: Run) -> None:
    domains = parts_of(run)[1]
    name = "+v+d+n, logical domains=2"
    assert column(table(domains), "arm") == ["+v+d", name]
    assert name in row_line(row(domains, "+v+d+n"))
    assert any(heading == name for heading, _ in table(domains).commands)


def test_routings_are_settings_and_their_trace_goes_with_them(tmp_path: Path) -> None:
    arms = (LayerArm(label="+v"), LayerArm(label="+v+d"))
    part = LayerPart(arms=arms, tokens=(2,), routings=("balanced", "concentrated", "recorded"), figure="bars")
    rows = rows_of(LayerStore(parts=(part,)).write(tmp_path))
    assert varying([group[0].settings for group in groups_of(rows)]) == ("workload.routing",)


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        ([{TOKENS: 1, "workload.steps": 16}, {TOKENS: 64, "workload.steps": 2}], (TOKENS,)),
        ([{TOKENS: 1, "workload.steps": 16}, {TOKENS: 1, "workload.steps": 2}], ("workload.steps",)),
        (
            [{TOKENS: 1, "workload.steps": 4}, {TOKENS: 1, "workload.steps": 2}, {TOKENS: 2, "workload.steps": 2}],
            (TOKENS, "workload.steps"),
        ),
        ([{"workload.batch": 4}, {TOKENS: 4}], ("workload.batch", TOKENS)),
        ([{TOKENS: 1}], ()),
        ([], ()),
    ],
)
def test_a_setting_that_goes_with_another_is_not_shown(groups: list[dict[str, int]], shown: tuple[str, ...]) -> None:
    assert varying(groups) == shown  # type: ignore[arg-type]


def test_lines_of_layers_say_tokens_per_expert_and_align(run: Run) -> None:
    lines = [row_line(found) for found in rows_of(parts_of(run)[0])]
    timed = [line for line in lines if "ms/layer" in line]
    assert len({line.index("ms/layer") for line in timed}) == len({len(line) for line in timed}) == 1
    assert timed[0].startswith("base @1 ") and "TFLOPS" in timed[0]
    assert any(line.startswith("+v+d int8 @64 ") and "TOPS" in line for line in timed)
    assert f"{'+m int4_g32 @1':<24} UNSUPPORTED: +m: this processor has no AMX" in lines
