"""What a newcomer types: words that are no overrides, names from elsewhere, long ones, letters of every language."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ktbench.cli import main
from ktbench.cli.help import help_text
from ktbench.config import compose
from ktbench.config.lists import split_lists, with_letters
from ktbench.run import request
from ktbench.run.request import cells_of, plan_request, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import part_name

TINY = ("model=tiny", "model.layers=2")
LONG = "x" * 5000


@pytest.mark.parametrize("names", [("decode",), ("decode", "prefill"), ("kernels/domains",)])
def test_an_ablation_is_named_by_its_name_alone(names: tuple[str, ...]) -> None:
    written = read_request([*TINY, f"+ablation={','.join(names)}"])
    assert read_request([*names, *TINY]) == read_request([*TINY, *names]) == written
    assert [part.name for part in written.parts] == ([part_name(name) for name in names] if names[1:] else [""])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweep", "decod"], "did you mean decode"),
        (["plan", "model.path=Qwen/Qwen3-30B-A3B"], "hf download Qwen/Qwen3-30B-A3B"),
        (["eval", "+suite=hellaswag"], "suite=lm_eval/TASK"),
        (["sweep", "+ablation=formats"], "eval +ablation=formats"),
        (["sweep", "+ablation=formats"], "suite=null"),
    ],
)
def test_a_refusal_says_what_to_do(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["swep"], "sweep"),
        (["sweep", "+ablation=decoed"], "decode"),
        (["sweep", "+ablation=decode", "measure.max_round=3"], "measure.max_rounds"),
        (["run", "model=mixtral"], "mixtral_8x7b"),
        (["run", "machine=paper_a10"], "paper_a100"),
        (["run", "engine.avx51=true"], "engine.avx512"),
        (["run", "system=llama.cp"], "llama.cpp"),
        (["run", "precision=int4_32"], "int4_g32"),
        (["eval", "+suite=nanno"], "nano"),
        (["sweep", "sweep.arms=[base,+v]", "sweep.figure=bar"], "bars"),
        (["sweep", "+ablation=decode", "sweep.published=[fig_14]"], "fig14"),
        (["list", "machine"], "machines"),
        (["eval", "+suite=nano", "tasks=adition"], "addition"),
    ],
    ids=" ".join,
)
def test_a_near_name_is_named_and_a_long_list_is_not(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"did you mean {near}?" in said and len(said) < 300


def test_a_folder_that_is_no_name_of_a_hub_is_not_looked_for_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.path=/no/such/folder"]) == 2
    assert "hf download" not in capsys.readouterr().err


def test_a_task_of_lm_eval_is_a_suite() -> None:
    suite = compose(["suite=lm_eval/hellaswag", "model=nano"]).run["suite"]
    assert (suite["name"], suite["tasks"]) == ("hellaswag", [{"name": "hellaswag", "source": "lm_eval/hellaswag"}])


def test_help_of_a_verb_by_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "sweep"]) == 0
    said = capsys.readouterr().out
    assert main(["sweep", "--help"]) == 0
    assert said == capsys.readouterr().out
    assert help_text("sweep", "").splitlines()[2:] == said.splitlines()[2:]
    assert main(["help", "sweeep"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        [LONG],
        ["report", LONG],
        ["run", f"model={LONG}"],
        ["run", f"{LONG}=1"],
        ["run", f"run_name={LONG}"],
        ["run", *TINY, "machine=paper_a100", f"machine.name={LONG}"],
        ["run", *TINY, "machine=paper_a100", f"machine.title={LONG}"],
        ["run", f"model.path={LONG}"],
    ],
    ids=lambda words: words[-1].partition("=")[0][:20],
)
def test_long_names_are_refused_in_short_messages(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 2500


@pytest.mark.parametrize("title", ["Größe", "日本語", "a–b", "'quoted ü'"])
def test_letters_of_every_language_are_read(title: str) -> None:
    request = read_request([*TINY, f"sweep.title={title}", "resume=läufe", "+ablation=decode"])
    assert (request.title, request.resume) == (title.strip("'"), "läufe")


def test_lists_of_names_beyond_ascii_are_lists() -> None:
    assert split_lists([with_letters("peer.exports=/ä/x,/ö/y")], ()).lists == {"peer.exports": ["/ä/x", "/ö/y"]}


@pytest.mark.parametrize(("name", "block_bytes"), [("iq3_xxs", 136), ("iq1", 110)])
def test_formats_that_are_packed_anew_are_listed_with_the_bits_that_they_take(
    capsys: pytest.CaptureFixture[str], name: str, block_bytes: int
) -> None:
    """Those of a block of 256 weights as it is held, in more bits than in its file."""
    assert main(["list", "precisions"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} "))
    assert f"held in {8 * block_bytes / 256:.3g} bits a weight" in line


def test_a_plan_has_headings_and_a_time_and_no_digests(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["+ablation=decode"], ["workload.prompt=8,16", "engine.best=true"]):
        assert main(["plan", *TINY, *words]) == 0
        said = capsys.readouterr().out
        assert said.startswith("cell ")
        assert re.search(r"^time: about \d+ to \d+ minutes", said, re.MULTILINE)
        assert not [cell for cell in cells_of(read_request([*TINY, *words])) if cell.spec_id in said]


def test_a_plan_shows_what_does_not_fit_at_the_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What other processes hold may be free when the cells are measured; what no memory holds is refused."""
    words = [*TINY, "+ablation=decode"]
    assert main(["plan", *words]) == 0
    cells = capsys.readouterr().out.partition("memory:")[0]
    monkeypatch.setattr(request, "read_memory", lambda: SimpleNamespace(available_bytes=1 << 20, total_bytes=64 << 30))
    assert main(["plan", *words]) == 0
    said = capsys.readouterr().out
    assert cells in said and re.search(r"^not enough memory at the moment: .* free are", said, re.MULTILINE)
    with pytest.raises(RequestError, match="free are"):
        plan_request(read_request(words))
    monkeypatch.setattr(request, "read_memory", lambda: SimpleNamespace(available_bytes=1 << 20, total_bytes=1 << 20))
    assert main(["plan", *words]) == 2
