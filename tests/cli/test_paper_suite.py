"""The paper as a suite: every ablation composes, its cells are the published ones, and what is not has its reason."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.config import Request, ablation_names
from ktbench.results import published_names, published_of, read_published, read_run
from ktbench.results.paper import published_for
from ktbench.run.request import CellPlan, plan_request, read_request
from ktbench.spec.published import Published
from ktbench.spec.sweep import arm_peer

PARTS = [name for name in ablation_names() if name.startswith("paper/") and name not in ("paper/all", "paper/fig14")]
SIMULATED = [name for name in PARTS if name not in ("paper/fig13", "paper/table2", "paper/quantisation")]
# Numbers that no cell is planned for, each with why that is so.
UNMATCHED = {
    "paper/fig3": lambda number: number.tokens is None or "amx_tflops=null" in number.settings,  # PyTorch without AMX
    "paper/concurrency": lambda number: number.metric == "relative %" or number.phase == "prefill",  # no length given
    "paper/sft": lambda number: number.tokens is None,
}
# Of the weights on the GPU, where it is another one than the experts'.
DEVICE = {
    "paper/layerwise": "bf16",
    **dict.fromkeys(("paper/concurrency", "paper/llamafile", "paper/stated"), "int4_g32"),
}


@cache
def planned(name: str) -> tuple[Request, CellPlan]:
    request = read_request([f"+ablation={name}"])
    return request, plan_request(request)


def numbers_of(name: str) -> tuple[Published, ...]:
    (part,) = planned(name)[0].parts
    return read_published(*part.sweep.published)


def test_every_published_figure_has_an_ablation() -> None:
    shown = {number.figure for name in PARTS for number in numbers_of(name)}
    assert shown == set(published_names()) - {"testbed"}


def test_the_suite_is_all_of_them() -> None:
    suite, fig14 = (read_request([f"+ablation=paper/{name}"]).sweep.parts for name in ("all", "fig14"))
    assert sorted(suite) == sorted(PARTS)
    assert set(fig14) == {"paper/fig14_prefill", "paper/fig14_decode"}


@pytest.mark.parametrize("name", SIMULATED)
def test_every_number_has_its_cell_or_its_reason(name: str) -> None:
    numbers, cells = numbers_of(name), planned(name)[1].simulated
    found = {number.id for cell in cells for number in published_for(cell.spec, cell.label, numbers)}
    for number in numbers:
        if number.id not in found and number.metric != "%":
            assert UNMATCHED.get(name, lambda _: False)(number), number.id


@pytest.mark.parametrize("name", SIMULATED)
def test_a_number_has_one_cell_and_cells_without_one_are_few(name: str) -> None:
    numbers, (_, plan) = numbers_of(name), planned(name)
    about = [published_for(cell.spec, cell.label, numbers) for cell in plan.simulated]
    shown = [number.id for found in about for number in found]
    assert len(shown) == len(set(shown))
    alone = [cell.label for cell, found in zip(plan.simulated, about, strict=True) if not found]
    # Our AVX-512 kernel; each arm at the other's machine; domains apart, and domains where there is one; each arm at
    # models of the others.
    expected = {"paper/fig3": 11, "paper/concurrency": 6, "paper/llamafile": 6, "paper/stated": 10}
    assert len(alone) == expected.get(name, 0)


@pytest.mark.parametrize("name", SIMULATED)
def test_cells_are_simulated_unless_another_system_or_instructions_that_are_not_there(name: str) -> None:
    plan = planned(name)[1]
    assert not plan.here and plan.simulated
    for cell in plan.simulated:
        if why := plan.unsupported.get(cell.key):
            lacking = (
                "core_14900kf_4090 has no AVX-512",
                "xeon6_mrdimm_4090d is described by its AVX-512 rates",
                "xeon_6454s_4090d has one NUMA domain",
                "epyc_9654_l40s has no AMX",
            )
            assert arm_peer(cell.label) or any(reason in why for reason in lacking), (cell.label, why)
        assert cell.spec.device_precision == (DEVICE.get(name, cell.spec.precision))


def test_few_tokens_give_every_expert_equally_many() -> None:
    cells = planned("paper/fig7")[1].cells
    assert {cell.spec.tokens_per_expert for cell in cells} == {1, 2, 3, 4, 5, 6, 7, 8}


def test_this_machine_stands_beside_the_one_on_paper() -> None:
    words = [
        "+ablation=paper/fig12",
        "machine=paper_a100,here",
        "model=tiny",
        "precision=bf16",
        "device_precision=bf16",
    ]
    plan = plan_request(read_request(words))
    assert {cell.label for cell in plan.here if cell.role == "arm"} == {cell.label for cell in plan.simulated}


def test_numbers_alone_are_shown_without_loading_anything(tmp_path: Path) -> None:
    code = (
        "import sys; from ktbench.cli import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    words = ["sweep", "+ablation=paper/table2", "run_name=t"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "83.0488" in ended.stdout and "Accuracy is not simulated." in ended.stdout
    assert (tmp_path / "runs/t/report/paper.html").is_file()
    assert read_run(tmp_path / "runs/t").header.cells == ()


def test_a_sweep_shows_published_beside_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "+ablation=paper/fig14_decode", "run_name=t"]) == 0
    out = capsys.readouterr().out
    assert "| published (tokens/s) | simulated (tokens/s) | error (%) |" in out
    assert "Simulated against published over 12 cells: median " in out
    assert main(["report", "t", "md"]) == 0
    assert "# Decode breakdown, Fig. 14" in capsys.readouterr().out
    run = read_run(tmp_path / "runs/t")
    assert run.published == published_of(run.header.parts) and len(run.published) == 18


def test_plan_says_that_there_is_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+ablation=paper/fig13"]) == 0
    assert "nothing to run, published numbers are shown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("sweep.published=[fig99]", "published=fig99: no such figure, did you mean fig"),
        ("sweep.published=[fig14c]", "published=fig14c: no such figure"),
        ("sweep.published=[]", "sweep.figure=paper: draws published numbers, name them in sweep.published"),
    ],
)
def test_figures_that_are_not_there_are_refused(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "+ablation=paper/table2", word, "run_name=never"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1
