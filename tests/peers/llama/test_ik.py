"""ik_llama.cpp: its options and output by a program that prints in its form, and a sweep with a real build."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.cli import main
from ktbench.engine.gguf.header import GgufHeader
from ktbench.engine.protocol import HostRole
from ktbench.peers.llama.bench import BenchRow, Program, options, read_rows
from ktbench.peers.llama.ik import IK_LLAMA, IkLlama, open_peer
from ktbench.peers.llama.settings import LlamaSettings
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.tiny import tiny_spec

PREFILL = WorkloadSpec(phase="prefill", prompt=512, steps=2)
DECODE = WorkloadSpec(phase="decode", prompt=64, steps=8)
ROW: dict[str, Any] = {
    "build_commit": "8337e4cd3",
    "cuda": False,
    "blas": False,
    "model_filename": 'a "folder"/\\ {\n  }',
    "model_type": "qwen3moe ?B Q4_0",
    "n_ubatch": 512,
    "n_threads": 2,
    "type_k": "f16",
    "type_v": "f16",
    "flash_attn": True,
    "repack": True,
    "fused_moe": True,
    "use_thp": False,
    "samples_ns": [80_000_000, 70_000_000],
}
# The first repetition is slow; half of the threads are faster.
PROGRAM = """
import json, pathlib, sys
words = sys.argv[1:]
requested = dict(zip(words[::2], words[1::2], strict=True))
pathlib.Path(requested["-m"]).open("a").write(json.dumps(requested) + "\\n")
print("[", flush=True)
for i, threads in enumerate(requested["-t"].split(",")):
    samples = [10**9] + [10**6 * int(threads)] * (int(requested["-r"]) - 1)
    row = {row} | {"n_threads": int(threads), "n_ubatch": int(requested["-ub"]), "samples_ns": samples}
    print("," * bool(i) + "\\n" * bool(i) + {show}, end="", flush=True)
print("\\n]")
"""


def shown(**changes: Any) -> str:
    """A row as it prints one: each key on a line of its own, between braces that are indented by two."""
    pairs = ((key, value) for key, value in (ROW | changes).items() if value is not None)
    fields = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    return f"  {{\n{fields}\n  }}"


def output(*rows: str) -> str:
    return "[\n" + ",\n".join(rows) + "\n]\n"


def ik_llama(folder: Path, text: str = PROGRAM) -> IkLlama:
    show = "'  {\\n' + ',\\n'.join(f'    {json.dumps(k)}: {json.dumps(v)}' for k, v in row.items()) + '\\n  }'"
    path, file = folder / "llama-bench", folder / "model.gguf"
    path.write_text(f"#!{sys.executable}\n{text.replace('{row}', repr(ROW)).replace('{show}', show)}")
    path.chmod(0o755)
    program = Program(program=str(path), file=file, dialect=IK_LLAMA)
    return IkLlama(program, tiny_spec().model, HostRole(cores=4), GgufHeader(path=file, metadata={}, tensors={}))


def spec(workload: WorkloadSpec, tune_s: float = 0.0) -> RunSpec:
    measure = tiny_spec(measure={"turn_timeout_s": 30.0}).measure
    peer = PeerSpec(tune_s=tune_s)
    return RunSpec(model=tiny_spec().model, workload=workload, system="ik_llama.cpp", peer=peer, measure=measure)


def requested(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "model.gguf").read_text().splitlines()]


def test_a_prefill_leaves_its_first_repetition_out(tmp_path: Path) -> None:
    system = ik_llama(tmp_path)
    system.configure(spec(PREFILL))
    assert system.own_samples_s() == (0.004, 0.004)
    (words,) = requested(tmp_path)
    assert {"-p": "512", "-n": "0", "-r": "3", "-o": "json"}.items() <= words.items()
    assert {"-rtr": "1", "-mmp": "0", "-fmoe": "1", "-thp": "1", "-fa": "1", "-ngl": "0"}.items() <= words.items()


def test_a_decode_begins_after_the_prompt(tmp_path: Path) -> None:
    """Its program has no `-d`: `-p` and `-n` would be tests of their own."""
    system = ik_llama(tmp_path)
    system.configure(spec(DECODE))
    assert system.own_samples_s() == (1 / 8,)
    (words,) = requested(tmp_path)
    assert {"-p": "0", "-n": "0", "-gp": "64,8", "-r": "1", "-t": "4"}.items() <= words.items()
    assert "-d" not in words
    _, built, _ = system.notes()
    for fact in ("ik_llama.cpp", "8337e4cd3", "CPU", "Q4_0", "repack on", "use_thp off"):
        assert fact in built


def test_tuning_requests_lists(tmp_path: Path) -> None:
    system = ik_llama(tmp_path)
    system.configure(spec(PREFILL, tune_s=60.0))
    assert system.own_samples_s() == (0.001, 0.001)
    assert ("3,2,1", "1") in [(words["-t"], words["-fa"]) for words in requested(tmp_path)]


def test_options_come_in_pairs() -> None:
    for work in (PREFILL, DECODE):
        words = options(work, [LlamaSettings(threads=n) for n in (2, 1)], IK_LLAMA)
        assert len(words) % 2 == 0 and len(set(words[::2])) == len(words[::2])


def read(text: str) -> tuple[BenchRow, ...]:
    return read_rows(text, IK_LLAMA)


def test_rows_are_read_in_order() -> None:
    first, second = read("using THP .... done\n" + output(shown(), shown(n_threads=1, flash_attn=False, cuda=True)))
    assert (first.settings, first.samples_s) == (LlamaSettings(threads=2), (0.08, 0.07))
    assert second.settings == LlamaSettings(threads=1, flash=False)
    assert (first.backends, second.backends) == ("CPU", "cuda")


@given(end=st.integers(0, len(output(shown(), shown()))))
def test_of_a_program_that_was_ended_the_whole_rows_are_read(end: int) -> None:
    whole = output(shown(), shown())
    assert read(whole[:end]) == read(whole)[: whole[:end].count("\n  }")]


@given(data=st.data())
def test_a_damaged_output_is_read_or_refused(data: st.DataObject) -> None:
    whole = output(shown(), shown(n_threads=1))
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    try:
        rows = read(whole[:begin] + data.draw(st.text(max_size=5)) + whole[end:])
    except ValueError as error:
        assert "llama-bench printed" in str(error)
    else:
        assert len(rows) <= 2 and all(sample_s > 0 for row in rows for sample_s in row.samples_s)


@given(text=st.text())
def test_any_text_holds_no_rows_or_is_refused(text: str) -> None:
    try:
        assert read("  {\n" + text + "\n  }") == ()
    except ValueError as error:
        assert "llama-bench printed" in str(error)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    ik_llama(tmp_path)
    cell = tiny_spec(system="ik_llama.cpp", peer=PeerSpec(ik_llama=str(tmp_path), exports=str(tmp_path / "gone")))
    with pytest.raises(ValueError, match="no such file"):
        open_peer([cell], HostRole(cores=1))


@pytest.mark.peers
@pytest.mark.skipif("IK_LLAMA" not in os.environ, reason="IK_LLAMA names no folder with a build of ik_llama.cpp")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_real_build_is_measured_in_a_sweep(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["IK_LLAMA"]).absolute()
    monkeypatch.chdir(tmp_path)
    words = ("model=tiny", f"workload={phase}", "system=ktbench,ik_llama.cpp", "precision=q8_0", "workload.steps=3")
    quick = ("peer.tune_s=0.2", "measure.min_rounds=2", "measure.max_rounds=2", "run_name=seen")
    held = ("device_precision=q8_0", f"peers.ik_llama={folder}")
    assert main(["sweep", *words, *held, *quick]) == 0
    table = json.loads((tmp_path / "runs/seen/report/table.json").read_text())
    (row,) = [row for row in table["rows"] if row["label"] == "ik_llama.cpp"]
    assert row["unproven"]
