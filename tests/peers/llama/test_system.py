"""llama.cpp on a tiny model: the same logits as plain Transformers, the same again, and files that it must not take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktbench.engine.gguf.export import MISSING, export_gguf, has_gguf, weights_digest
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.workload.routing import prompt_ids
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.engine.families.plain import build
from tests.engine.tiny import decode, prefill, tiny_model

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: nox -s peers installs it")
from ktbench.peers.llama.system import LlamaSystem, open_llama  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.skipif(not has_gguf(), reason=MISSING)]
MODEL = tiny_model()
DIGEST = weights_digest(MODEL, "F16", "F16")  # which holds the bf16 weights almost exactly
HOST = HostRole(cores=1)
WORKLOADS = [make(batch=batch) for make in (decode, prefill) for batch in (1, 3)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    export_gguf(MODEL, path, experts="F16", dense="F16", say=lambda _line: None)
    return path


@pytest.fixture(scope="module")
def system(file: Path) -> Iterator[LlamaSystem]:
    opened = open_llama(file, MODEL, HOST, DIGEST)
    yield opened
    opened.close()


def spec(workload: WorkloadSpec, tune_s: float = 0.0, **options: Any) -> RunSpec:
    peer = PeerSpec(tune_s=tune_s)
    return RunSpec(model=MODEL, workload=workload, system="llama.cpp", peer=peer, **options)


def run(system: LlamaSystem, steps: int) -> list[np.ndarray]:
    system.start()
    seen = []
    for _ in range(steps):
        system.step()
        seen.append(system.logits())
    return seen


def transformers_logits(workload: WorkloadSpec) -> list[np.ndarray]:
    """Float32 logits of every step, each from one pass over all tokens up to it."""
    network = build(MODEL).float()
    prefill = workload.phase == "prefill"
    tokens = workload.steps * workload.prompt if prefill else workload.prompt + workload.steps
    ids = torch.from_numpy(prompt_ids(256, workload.batch, tokens, workload.seed))
    parts = ids.split(workload.prompt, dim=1) if prefill else [ids[:, : n + 1] for n in range(workload.prompt, tokens)]
    with torch.no_grad():
        return [network(part).logits[:, -1].numpy() for part in parts]


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 2e-3  # activations, keys and values are F16
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.phase}-{w.batch}")
def test_logits_are_those_of_plain_transformers(system: LlamaSystem, workload: WorkloadSpec) -> None:
    system.configure(spec(workload))
    for found, expected in zip(run(system, workload.steps), transformers_logits(workload), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.phase}-{w.batch}")
def test_starting_again_repeats_bit_for_bit(system: LlamaSystem, workload: WorkloadSpec) -> None:
    system.configure(spec(workload))
    first = run(system, workload.steps)
    run(system, 1)  # a turn that was broken off
    for once, again in zip(first, run(system, workload.steps), strict=True):
        np.testing.assert_array_equal(once, again)


def test_chunks_give_what_the_whole_prompt_gives(system: LlamaSystem) -> None:
    whole, chunked = prefill(batch=2), prefill(batch=2, chunk=5)
    system.configure(spec(whole))
    expected = run(system, whole.steps)
    system.configure(spec(chunked))
    for found, once in zip(run(system, chunked.steps), expected, strict=True):
        assert_close(found, once)


def test_every_setting_gives_the_same_logits(file: Path) -> None:
    """What tuning chose, other workloads in between, and another order change nothing but rounding."""
    system = open_llama(file, MODEL, HOST)
    work = decode(batch=2)
    system.configure(spec(work, tune_s=5.0))
    tuned, notes = run(system, work.steps), system.notes()
    for other in range(2, 7):
        system.configure(spec(decode(steps=other)))
    system.configure(spec(work))
    again = run(system, work.steps)
    for found, once, expected in zip(again, tuned, transformers_logits(work), strict=True):
        assert_close(once, expected)
        assert_close(found, expected)
    assert system.notes()[0] == notes[0]  # still known
    system.close()


def test_notes_say_how_it_runs(system: LlamaSystem) -> None:
    work = decode()
    system.configure(spec(work, tune_s=5.0, engine=replace(spec(work).engine, threads=1)))
    run(system, work.steps)
    tuned, built = system.notes()
    version = llama_cpp.__version__
    assert tuned.startswith((f"llama.cpp {version} tuned in ", f"llama.cpp {version} not tuned"))
    assert "threads 1" in tuned
    assert f"llama.cpp {version} built for CPU" in built
    assert built.endswith("keys and values F16")
    assert 0 < system.own_step_s() < 1


def test_shows_nothing_else(system: LlamaSystem) -> None:
    system.configure(spec(decode()))
    assert system.observe() == ()
    assert system.counters() == {}
    assert system.chosen() == {}
    with pytest.raises(Unsupported):
        system.timeline()
    work = system.work()
    assert work is not None
    assert work.tokens == 1
    system.configure(spec(prefill()))
    assert system.work() is None


def test_past_the_last_step_is_an_error(system: LlamaSystem) -> None:
    work = decode(steps=1)
    system.configure(spec(work))
    system.step()
    with pytest.raises(ValueError, match=r"workload.steps=1: all were done"):
        system.step()


def test_what_it_cannot_run_is_named(system: LlamaSystem) -> None:
    with pytest.raises(Unsupported, match="routing=balanced"):
        system.configure(spec(decode(routing="balanced")))
    with pytest.raises(Unsupported, match="runs at most 256 here"):
        system.configure(spec(decode(batch=1000)))


def test_more_threads_than_cores_are_refused(system: LlamaSystem) -> None:
    engine = replace(spec(decode()).engine, threads=2)
    with pytest.raises(ValueError, match=r"engine.threads=2: allowed are 1 to 1"):
        system.configure(spec(decode(), engine=engine))


def test_other_weights_are_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=rf"tiny.gguf: holds other weights \({DIGEST}\) than those of the model \(9"):
        open_llama(file, MODEL, HOST, "9999")


def test_another_depth_and_vocabulary_are_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"tiny.gguf: has 2 layers, the model has 1"):
        open_llama(file, tiny_model(num_hidden_layers=1), HOST, DIGEST)
    with pytest.raises(ValueError, match=r"tiny.gguf: has 256 tokens in its vocabulary, the model has 255"):
        open_llama(file, tiny_model(vocab_size=255), HOST, DIGEST)


def test_files_that_are_not_whole_are_refused(file: Path, tmp_path: Path) -> None:
    for name, content in (("cut", file.read_bytes()[:-64]), ("head", file.read_bytes()[:100]), ("none", b"")):
        broken = tmp_path / f"{name}.gguf"
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.gguf: truncated"):
            open_llama(broken, MODEL, HOST)
    with pytest.raises(ValueError, match="no such file"):
        open_llama(tmp_path / "gone.gguf", MODEL, HOST)


def test_llama_cpp_has_the_last_word_on_a_file(tmp_path: Path) -> None:
    """A header that is right and a model that is not: its own words are in the message."""
    import gguf

    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_tensor("token_embd.weight", np.zeros((256, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"odd.gguf: llama.cpp cannot load it: .*key not found"):
        open_llama(path, MODEL, HOST)


def test_fewer_cpus_than_cores_are_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"this thread may run on \d+ of 100000 cores"):
        open_llama(file, MODEL, HostRole(cores=100_000))
