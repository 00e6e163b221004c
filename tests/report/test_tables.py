from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.report.conditions import cpu_title
from ktbench.report.figures.marks import ends
from ktbench.report.latex import latex
from ktbench.report.terminal import row_line
from ktbench.report.web.warnings import warnings_of
from ktbench.report.write import write_report
from ktbench.results.quantities.text import SEPARATOR, pairs_text
from ktbench.results.row import comparable
from ktbench.results.rows import rows_of
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.record import Outcome, Record, RoofSample
from tests.report.reading import csv_lines, csv_of_run, headings, json_of_run, table
from tests.report.synthetic import DECODE, Arm, Store

PAIR = DECODE[:2]


def test_every_measured_heading_has_its_unit(tmp_path: Path) -> None:
    run = Store(arms=PAIR).write(tmp_path)
    plain = {"arm", "outcome", "verdict"}
    assert all(re.search(r"\(.+\)$", heading) for heading in headings(table(run)) if heading not in plain)


def test_a_reason_is_said_once_for_all_rows_that_share_it(tmp_path: Path) -> None:
    found = Store(arms=(Arm(label="base", outcome=Outcome.CRASHED, why="signal 9"), *DECODE[1:3])).write(tmp_path)
    assert [note for note in table(found).notes if "+v" in note] == ["+v; +m — base is CRASHED: signal 9"]


def test_a_column_that_no_row_fills_is_left_out_with_its_reason(tmp_path: Path) -> None:
    run = Store(arms=PAIR, roofs=False).write(tmp_path)
    assert "of roof (%)" not in headings(table(run))
    assert table(run).notes == ("all rows — no roof was sampled next to the trials",)


def test_an_arm_is_named_alone_where_a_reason_holds_for_all_of_its_points(tmp_path: Path) -> None:
    missing = {"+m": ("lacks AMX", (128, 512)), "+v": ("killed", (512,))}
    run = Store(arms=DECODE[:3], prompts=(128, 512)).write(tmp_path)
    group_by = {cell.key: (cell.label, cell.spec.workload.prompt) for cell in run.header.cells}

    def ended(record: Record) -> Record:
        label, prompt = group_by[record.cell]
        why, prompts = missing.get(label, ("", ()))
        return replace(record, outcome=Outcome.CRASHED, why=why, samples_s=()) if prompt in prompts else record

    notes = table(replace(run, records=tuple(map(ended, run.records)))).notes
    assert {"+m — CRASHED: lacks AMX", "+v, workload.prompt=512 — CRASHED: killed"} <= set(notes)


def test_all_codes_and_machines_are_named_where_a_run_mixes_them(tmp_path: Path) -> None:
    run = Store(arms=PAIR).write(tmp_path)
    mixed = replace(run, records=(*run.records[:-1], replace(run.records[-1], code_id="other0000000")))
    ids = next(sentence for sentence in table(mixed).conditions if sentence.startswith("Ids: "))
    assert f"code {run.header.code_id} and other0000000, machine {run.header.env_id}, " in ids


@pytest.mark.parametrize("lean", [False, True])
def test_precisions_of_injection_rules_are_named_where_they_act(lean: bool, tmp_path: Path) -> None:
    named = {"experts": "int4_g64", "linear": "q5_k"}
    rules = tuple(
        InjectRule(name=operator, operator=operator, module=".*", args={"precision": precision})
        for operator, precision in named.items()
    )
    run = Store(arms=PAIR).write(tmp_path)
    cells = [
        replace(
            cell,
            spec=replace(
                cell.spec,
                inject=InjectSpec(name="mine", rules=rules),
                engine=replace(cell.spec.engine, packed_dense=lean and cell.spec.engine.fused),
            ),
        )
        for cell in run.header.cells
    ]
    changed = replace(run, header=replace(run.header, cells=tuple(cells)))
    (sentence,) = (one for one in table(changed).conditions if one.startswith("System"))
    assert {word for word in ("mine", "int4_g64", "q5_k") if word in sentence} == {
        "mine",
        "int4_g64",
        *(["q5_k"] if lean else []),
    }


def test_a_machine_nobody_described_is_said_to_be_so(tmp_path: Path) -> None:
    run = replace(Store(arms=PAIR).write(tmp_path), environments=())
    assert "Machine: not described." in table(run).conditions


def test_csv_and_json_carry_seconds_and_ids(tmp_path: Path) -> None:
    run = Store(arms=DECODE).write(tmp_path)
    rows = rows_of(run)
    lines, content = csv_of_run(run), json_of_run(run)
    assert len(lines) == len(content["rows"]) == 7
    for line, found, row in zip(lines, content["rows"], rows, strict=True):
        assert line["spec_id"] == found["spec_id"] == row.spec_id
        assert line["command"] == found["command"] == row.command
        samples = {r.round: list(r.samples_s) for r in run.of_cell(row.cell)}
        assert {r["round"]: r["samples_s"] for r in found["records"]} == samples
        if row.step_s is None:
            assert (line["step_s"], found["step_s"]) == ("", None)
            assert line["missing"] and found["missing"]["step_s"]
        else:
            assert float(line["step_s"]) == found["step_s"]["mid"] == row.step_s.mid


def test_the_samples_as_csv_are_those_of_the_log_one_in_a_line(tmp_path: Path) -> None:
    run = Store(arms=DECODE).write(tmp_path)
    (path,) = write_report(run, ["samples"])
    found = [(line["cell"], int(line["round"]), float(line["step_s"])) for line in csv_lines(path.read_text())]
    assert found == [
        (cell.key, record.round, seconds)
        for cell in run.header.cells
        for record in run.of_cell(cell.key)
        for seconds in record.samples_s
    ]


def test_a_list_of_texts_in_a_cell_comes_apart_where_it_was_put_together() -> None:
    texts = {"energy": "no meter; no file", "roof": "a | b"}
    assert pairs_text(texts).split(SEPARATOR) == ["energy: no meter; no file", "roof: a / b"]


def test_latex_escapes_and_balances(tmp_path: Path) -> None:
    run = Store(
        arms=(PAIR[0], Arm(label="+v", outcome=Outcome.CRASHED, why=r"50% of a_b & #1 {x} ~^\ $5")),
    ).write(tmp_path)
    text = latex(table(run))
    assert r"50\% of a\_b \& \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} \$5" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 3
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    columns = len(table(run).columns)
    assert all(len(re.findall(r"(?<!\\)&", line)) == columns - 1 for line in rows)
    assert len(rows) == 4
    body = re.sub(r"\\[{}]", "", "\n".join(line for line in text.splitlines() if not line.startswith("%")))
    assert body.count("{") == body.count("}")


ENDS = re.compile(r"\d \[\d")  # `1.5 [1.4, 1.6]`


@pytest.mark.parametrize(("rounds", "has_ends"), [(1, False), (5, False), (6, True)])
def test_too_few_rounds_have_no_interval_anywhere(tmp_path: Path, rounds: int, has_ends: bool) -> None:
    """The least and the most of five values hold a median with 93.75 %: none of 95 % is shown, and none is drawn."""
    run = Store(arms=PAIR, rounds=rounds).write(tmp_path)
    rows = rows_of(run)
    texts = [file.read_text() for file in write_report(run, ["md", "tex", "kit"]) if file.suffix in (".md", ".tex")]
    texts = [line for text in texts for line in text.splitlines() if line.startswith(("| ", "base", "+v"))]
    texts += [row_line(row) for row in rows]
    assert [bool(ENDS.search(text)) for text in texts if "+v" in text and "python" not in text]
    assert any(ENDS.search(text) for text in texts) == has_ends
    assert all((line["speedup_low"] == "") != has_ends for line in csv_of_run(run) if line["label"] == "+v")
    assert any(ends("y", row.step_s)["y_low"] > 0 for row in rows if row.step_s) == has_ends


def test_a_table_for_a_paper_has_what_its_numbers_are_worth(tmp_path: Path) -> None:
    run = Store(arms=PAIR, rounds=5).write(tmp_path)
    short = table(run).short()
    at = {name: headings(short).index(name) for name in ("outcome", "verdict", "time (ms/step)")}
    assert all(line[at["outcome"]] == "NOISY" and line[at["time (ms/step)"]].startswith("~") for line in short.cells)
    assert [line[at["verdict"]] for line in short.cells] == ["baseline", "unsure"]
    kit = next(file for file in write_report(run, ["kit"]) if file.name == "kit.tex").read_text()
    assert "5 comparable rounds" in kit and "too few rounds for an interval" in kit


def test_rounds_that_compare_are_counted_apart(tmp_path: Path) -> None:
    """The cores moved in one round of +v, which has a time then and no speed-up."""
    run = Store(arms=PAIR, rounds=7, control=False, ping_pong_ns=(60.0,)).write(tmp_path)

    def moved(record: Record) -> Record:
        far = tuple(replace(roof, ping_pong_ns=600.0) for roof in record.roofs)
        return replace(record, roofs=far) if (record.label, record.round) == ("+v", 3) else record

    found = {row.shown: row for row in rows_of(replace(run, records=tuple(map(moved, run.records))))}
    assert [(row.rounds, comparable(row)) for row in found.values()] == [(7, 7), (7, 6)]


@pytest.mark.parametrize(
    ("model", "facts", "title"),
    [
        (173, {}, "Intel Xeon (Granite Rapids)"),
        (207, {"granted": ["avx512", "amx"]}, "Intel Xeon (Emerald Rapids)"),
        (167, {"granted": ["avx512"]}, "Intel Xeon (Rocket Lake)"),
        (167, {"granted": ["avx512", "amx"], "last_level_cache_bytes": 480 * 2**20}, "Intel Xeon (Granite Rapids)"),
        (167, {"granted": ["avx512", "amx"], "last_level_cache_bytes": 105 * 2**20}, "Intel Xeon"),
        (999, {"granted": ["avx512"], "last_level_cache_bytes": 480 * 2**20}, "Intel Xeon"),
    ],
)
def test_a_title_has_no_numbers_of_a_processor(model: int, facts: dict[str, Any], title: str) -> None:
    """Conditions have them. AMX, which Rocket Lake does not have, says that a guest's numbers are not its own."""
    name = f"Intel(R) Xeon(R) Processor (family 6, model {model}, stepping 1)"
    assert cpu_title({"cpu_model": name, **facts}) == title


def test_the_baseline_is_1_in_data_as_in_the_table(tmp_path: Path) -> None:
    base, other, _ = csv_of_run(Store(arms=PAIR).write(tmp_path))
    assert (base["speedup"], base["speedup_low"], base["comparable_rounds"]) == ("1.0", "", "12")
    assert float(other["speedup"]) > 2


def test_more_than_a_roof_is_a_warning(tmp_path: Path) -> None:
    run = Store(arms=PAIR).write(tmp_path)
    (share,) = {round(row.values["roof_share"].mid, 3) for row in rows_of(run)[1:2]}
    high = [replace(one, roofs=tuple(lower(roof, share / 1.42) for roof in one.roofs)) for one in run.records]
    for records, warned in ((run.records, False), (tuple(high), True)):
        changed = replace(run, records=records)
        assert any("142% of read" in note for note in table(changed).notes) == warned
        assert any("142% of" in line for line in warnings_of(rows_of(changed))) == warned


def lower(roof: RoofSample, factor: float) -> RoofSample:
    return replace(roof, read_bytes_per_s=roof.read_bytes_per_s * factor, peak_flops=roof.peak_flops * factor)
