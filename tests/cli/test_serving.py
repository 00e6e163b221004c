"""`run workload=serve` from the command line to the report, on a model that loads in no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.host.capabilities import machine_capabilities
from ktbench.results import read_run
from ktbench.spec.record import Outcome

TINY = (
    *("model=tiny", "model.layers=2", "workload=serve", "workload.prompt=12", "workload.stream.answer=4"),
    *("workload.stream.requests=4", "workload.stream.concurrency=2", "measure.min_rounds=1", "measure.max_rounds=1"),
)


@pytest.mark.skipif(bool(machine_capabilities()["avx2"]), reason="runs the fused operator on AVX2")
@pytest.mark.usefixtures("loaded_children")
def test_requests_are_served_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    features = (
        "engine.avx2=true",
        "engine.batching=true",
        "engine.chunked_prefill=true",
        "engine.serving.chunk_tokens=8",
        "workload.stream.slo.ttft_s=60",
    )
    assert main(("run", *TINY, *features, "run_name=served")) in (0, 4), capfd.readouterr().err
    run = read_run(tmp_path / "runs/served")
    (record,) = run.records
    assert record.outcome is Outcome.OK, record.why
    assert record.replay is not None
    assert [(one.prompt, one.tokens) for one in record.replay.requests] == [(12, 4)] * 4
    assert len(record.samples_s) == 2
    table = (tmp_path / "runs/served/report/table.md").read_text()
    assert "first token p99 (s)" in table
    assert "goodput (requests/s)" in table


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workload.stream.trace=none.csv",), "workload.stream.trace=none.csv: no such file"),
        (("workload.stream.concurrency=3",), "workload.stream.requests=4: must be at least workload.steps=2"),
        (("machine=paper_a100",), "is not simulated"),
        (("system=openai",), "set peer.url="),
        (("system=llama-server",), "set peer.llama_server="),
        (("system=llama-server", "peer.llama_server=gone"), "peer.llama_server=gone: no such program"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_loads(
    words: tuple[str, ...], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    main(("plan", *TINY, *words))
    assert why in "".join(capfd.readouterr())
