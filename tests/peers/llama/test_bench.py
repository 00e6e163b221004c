"""llama-bench, by a program that prints what it would print, and by ones that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.gguf.header import GgufHeader
from ktbench.engine.protocol import HostRole, SelfTimed, Unsupported
from ktbench.peers.llama.bench import LlamaBench, Program, options, read_rows
from ktbench.peers.llama.settings import LlamaSettings
from ktbench.peers.tuning import search
from ktbench.run.worker_process import open_peer
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.tiny import tiny_spec
from tests.waiting import is_gone, until

MODEL = tiny_spec().model
PREFILL = WorkloadSpec(phase="prefill", prompt=2048, steps=2)
DECODE = WorkloadSpec(phase="decode", prompt=64, steps=8)
ROW: dict[str, Any] = {
    "build_commit": "8cf427ff",
    "backends": "CPU",
    "model_type": "qwen3moe ?B Q8_0",
    "n_threads": 4,
    "n_ubatch": 512,
    "flash_attn": 1,
    "type_k": "f16",
    "type_v": "f16",
    "samples_ns": [250_000_000],
}
# Two threads are twice as fast as four, flash attention off costs a tenth, ubatch 1024 is the best.
PROGRAM = """
import itertools, json, pathlib, sys
words = sys.argv[1:]
requested = dict(zip(words[::2], words[1::2], strict=True))
pathlib.Path(requested["-m"]).open("a").write(json.dumps(requested) + "\\n")
lists = [[int(n) for n in requested[name].split(",")] for name in ("-fa", "-ub", "-t")]
for flash, ubatch, threads in itertools.product(*lists):
    ns = 10**6 * (threads if threads > 1 else 5) * (11 - flash) * (1 if ubatch == 1024 else 2)
    row = {row} | {"n_threads": threads, "n_ubatch": ubatch, "flash_attn": flash}
    row["samples_ns"] = [ns + n for n in range(int(requested["-r"]))]
    print(json.dumps(row), flush=True)
"""


def program(folder: Path, text: str) -> str:
    """A program of that text."""
    path = folder / "llama-bench"
    path.write_text(f"#!{sys.executable}\n{text.replace('{row}', repr(ROW))}")
    path.chmod(0o755)
    return str(path)


def bench(folder: Path, text: str = PROGRAM, cores: int = 4) -> LlamaBench:
    file = folder / "requested.jsonl"
    header = GgufHeader(path=file, metadata={}, tensors={})
    return LlamaBench(Program(program=program(folder, text), file=file), MODEL, HostRole(cores=cores), header)


def requested(folder: Path) -> list[dict[str, str]]:
    """The options of every run of `PROGRAM`."""
    return [json.loads(line) for line in (folder / "requested.jsonl").read_text().splitlines()]


def spec(workload: WorkloadSpec, tune_s: float = 0.0, **options: Any) -> RunSpec:
    measure = tiny_spec(measure={"turn_timeout_s": 30.0}).measure
    return RunSpec(
        model=MODEL,
        workload=workload,
        system="llama-bench",
        **({"peer": PeerSpec(tune_s=tune_s), "measure": measure} | options),
    )


def test_prefill_gives_every_pass(tmp_path: Path) -> None:
    system = bench(tmp_path)
    system.configure(spec(PREFILL))
    assert system.own_samples_s() == (0.08, 0.080000001)
    (words,) = requested(tmp_path)
    expected = {"-p": "2048", "-n": "0", "-d": "0", "-r": "2", "-b": "2048", "-ub": "512", "-t": "4", "-fa": "1"}
    assert expected.items() <= words.items()
    assert {"-ctk": "f16", "-ctv": "f16", "-ngl": "0", "-o": "jsonl"}.items() <= words.items()


def test_decode_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    system = bench(tmp_path)
    system.configure(spec(DECODE))
    assert system.own_samples_s() == (0.08 / 8,)
    assert {"-p": "0", "-n": "8", "-d": "64", "-r": "1"}.items() <= requested(tmp_path)[0].items()
    tuned, built, timed = system.notes()
    assert tuned.startswith("llama-bench not tuned")
    assert tuned.endswith("threads 4, ubatch 64, flash attention on")
    for fact in ("8cf427ff", "for CPU", "Q8_0", "f16 and f16"):
        assert fact in built
    assert "8 tokens" in timed


def test_tuning_finds_the_best_in_lists(tmp_path: Path) -> None:
    system = bench(tmp_path)
    system.configure(spec(PREFILL, tune_s=60.0))
    runs = [(words["-ub"], words["-fa"], words["-t"]) for words in requested(tmp_path)]
    assert runs == [
        ("512", "1", "4"),
        ("1024,2048", "1", "4"),
        ("256,128,64", "1", "4"),
        ("1024", "0", "4"),
        ("1024", "1", "3,2,1"),
    ]
    (note,) = system.notes()
    assert "over 10 settings: threads 2, ubatch 1024, flash attention on (20 ms a step; slowest 80 ms" in note
    system.own_samples_s()
    system.configure(spec(PREFILL, tune_s=60.0))  # kept for the session
    assert len(requested(tmp_path)) == len(runs) + 1


SAID = "pathlib.Path(__file__).with_name('said').touch()"  # the last that a program does which then waits
_LAST_WORDS_S = 0.2  # for what it has said to be read


class Clock:
    """Time passes where a program is waited for in vain: all at once, when there is nothing left that it does."""

    now_s = 0.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, communicate = Clock(), subprocess.Popen.communicate

    def until_all_is_said(process: Any, content: None = None, timeout: float | None = None) -> Any:
        if timeout is None:
            return communicate(process, content)
        until(lambda: (tmp_path / "said").exists() or process.poll() is not None)
        try:
            return communicate(process, content, _LAST_WORDS_S if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            clock.now_s += timeout
            raise

    monkeypatch.setattr(subprocess.Popen, "communicate", until_all_is_said)
    monkeypatch.setattr("ktbench.peers.llama.bench.search", partial(search, clock=lambda: clock.now_s))
    return clock


def test_tuning_is_ended_with_what_was_done(tmp_path: Path, clock: Clock) -> None:
    half = f"print('{{\"half', end='', flush=True); {SAID}; time.sleep(600)"
    system = bench(tmp_path, f"{PROGRAM}\nimport time\nif requested['-ub'] != '512':\n    {half}\n")
    system.configure(spec(PREFILL, tune_s=2.0))
    assert clock.now_s == 2.0
    (note,) = system.notes()
    assert "over 3 settings: threads 4, ubatch 1024, flash attention on" in note


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys; sys.exit('error: failed to load model')", "exited with 1: error: failed to load model"),
        ("import os; os.abort()", "exited with -6: it printed nothing"),
        (
            f"import pathlib, sys, time; print('loading', file=sys.stderr, flush=True); {SAID}; time.sleep(600)",
            "more than 30 s: loading",
        ),
        (
            f"import os, pathlib, signal; {SAID}; os.kill(os.getpid(), signal.SIGSTOP)",
            "more than 30 s: it printed nothing",
        ),
        ("", "printed 0 rows for one test"),
        ("print({row})", "printed a row that cannot be read"),
        ("import json; print(json.dumps({row} | {'samples_ns': [1, 2]}))", "printed 2 samples, 1 were expected"),
        ("import json; print(json.dumps({row})); print(json.dumps({row}))", "printed 2 rows for one test"),
    ],
)
@pytest.mark.usefixtures("clock")
def test_a_program_that_misbehaves_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    system = bench(tmp_path, text)
    system.configure(spec(DECODE))
    with pytest.raises((RuntimeError, ValueError), match=says):
        system.own_samples_s()


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    missing = Program(program=str(tmp_path / "gone"), file=tmp_path)
    with pytest.raises(ValueError, match=r"gone: cannot be run: No such file"):
        missing.run(DECODE, [LlamaSettings(threads=1)], 1.0)


def test_it_is_no_step_and_shows_no_logits(tmp_path: Path) -> None:
    system = bench(tmp_path)
    system.configure(spec(DECODE))
    system.start()
    for call in (system.step, system.logits, system.timeline):
        with pytest.raises(Unsupported, match="llama-bench"):
            call()
    assert (system.observe(), system.counters(), system.chosen()) == ((), {}, {})
    assert isinstance(system, SelfTimed)


def test_what_it_cannot_run_is_named(tmp_path: Path) -> None:
    for batch, chunk, why in ((2, None, "workload.batch=2: llama-bench runs at most 1"), (1, 2, "chunk")):
        with pytest.raises(Unsupported, match=why):
            bench(tmp_path).configure(spec(WorkloadSpec(phase="prefill", prompt=4, steps=1, batch=batch, chunk=chunk)))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no such file"):
        open_peer([spec(PREFILL, peer=PeerSpec(llama_bench="llama-bench", exports="gone"))], HostRole(cores=1))


def line(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (ROW | changes).items() if value is not None}) + "\n"


def test_rows_are_read_in_order_and_half_a_row_is_dropped() -> None:
    rows = read_rows("warning: debug build\n" + line() + line(n_threads=2, flash_attn=False) + '{"n_threads": 1')
    assert [(row.settings.threads, row.settings.flash, row.samples_s) for row in rows] == [
        (4, True, (0.25,)),
        (2, False, (0.25,)),
    ]
    assert read_rows("") == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samples_ns": None}, "missing required field samples_ns"),
        ({"samples_ns": []}, "samples_ns"),
        ({"samples_ns": [0]}, "samples_ns"),
        ({"samples_ns": [True]}, "samples_ns"),
        ({"samples_ns": "fast"}, "samples_ns: expected array, got str"),
        ({"samples_ns": [float("nan")]}, "malformed"),
        ({"n_threads": None}, "n_threads"),
        ({"n_threads": 0}, "n_threads=0: must be at least 1"),
        ({"n_ubatch": "512"}, "n_ubatch: expected int, got str"),
        ({"flash_attn": None}, "flash_attn"),
    ],
)
def test_rows_with_something_wrong_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_rows(line(**changes))


@given(text=st.text())
def test_any_output_is_read_or_refused(text: str) -> None:
    """A parser of what another program prints never fails otherwise."""
    try:
        assert read_rows(text) == ()
    except ValueError as error:
        assert "llama-bench printed" in str(error)


def test_options_come_in_pairs() -> None:
    words = options(PREFILL, [LlamaSettings(threads=n, ubatch=4096) for n in (1, 2, 1)])
    assert len(words) % 2 == 0
    given_options = dict(zip(words[::2], words[1::2], strict=True))
    assert given_options["-t"] == "1,2"
    assert given_options["-fa"] == "1"
    assert ("-fa", "1,0") in pairwise(options(DECODE, [LlamaSettings(threads=1, flash=on) for on in (True, False)]))
    assert given_options["-b"] == "4096"


WORKER = """
import sys
from itertools import pairwise
from pathlib import Path
from tests.peers.llama.test_bench import DECODE, LlamaSettings, Program
Program(program=sys.argv[1], file=Path("model.gguf")).run(DECODE, [LlamaSettings(threads=1)], 600.0)
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_the_program_ends_with_its_worker_however_that_ends(tmp_path: Path, then: str) -> None:
    """Else it would load all cores on beside the next timing. One that is stopped ends, too."""
    note = tmp_path / "pid.txt"
    text = f"import os, pathlib, signal, time\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n{then}\n"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, program(tmp_path, text)], cwd=Path(__file__).parents[3])
    until(lambda: note.exists() and bool(note.read_text()))
    assert not is_gone(int(note.read_text()))
    worker.kill()
    worker.wait()
    until(lambda: is_gone(int(note.read_text())))
