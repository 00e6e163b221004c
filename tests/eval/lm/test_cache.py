"""Answers come back for the same question to the same engine, and for nothing else, whatever became of the file."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.lm.cache import AnswerCache, identity_of, request_key
from ktbench.eval.lm.generation import Generation, GenerationRequest
from ktbench.files import NotWritten
from ktbench.spec.engine import EngineSpec, PlacementSpec, ServingSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.run_spec import RunSpec
from tests.eval.lm.checkpoints import CHAT, byte_tokenizer, merging_tokenizer
from tests.tiny import tiny_spec

TOKENIZER = byte_tokenizer()
# A value other than the default for every field, and what has to go with it.
OTHERS: dict[str, dict[str, Any]] = {
    "avx2": {"avx2": True},
    "avx512": {"avx512": True},
    "amx": {"amx": True},
    "dynamic": {"avx512": True, "dynamic": True},
    "numa": {"avx512": True, "numa": True, "domains": 2},
    "cuda_graph": {"avx512": True, "cuda_graph": True, "device": "cuda"},
    "packed_dense": {"avx512": True, "packed_dense": True},
    "deferral": {"deferral": 1},
    "skipping": {"skipping": 1},
    "defer_prefill": {"defer_prefill": True},
    "amx_min_tokens": {"amx_min_tokens": 9},
    "threads": {"threads": 2},
    "domains": {"domains": 2},
    "device": {"device": "cuda"},
    "roles": {"roles": "split"},
    "device_threads": {"roles": "split", "device_threads": 1},
    "device_prefill_tokens": {"avx512": True, "device": "cuda", "device_prefill_tokens": 64},
    "handover": {"avx512": True, "device": "cuda", "handover": "flags"},
    "batching": {"batching": True},
    "chunked_prefill": {"chunked_prefill": True},
    "prefix_cache": {"prefix_cache": True},
    "static_batch": {"static_batch": 2},
    "serving": {"serving": ServingSpec(chunk_tokens=64)},
    "placement": {"roles": "split", "placement": PlacementSpec(policy="uniform", ratio=0.5)},
    "own": {"own": {"low_gate": 0.1}},
    "own_file": {"own_file": "low_gate.py"},
    "own_id": {"own_id": "digest"},
}


def identity(spec: RunSpec, **changes: Any) -> str:
    return identity_of(spec, **({"code_id": "code", "tokenizer": TOKENIZER} | changes))


def without(changes: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key != name}


@pytest.mark.parametrize("name", [field.name for field in fields(EngineSpec)])
def test_every_engine_setting_counts(name: str) -> None:
    """Beside a spec that differs in this field alone."""
    beside = without(OTHERS[name], name)
    changed = EngineSpec(**OTHERS[name])
    usual = EngineSpec(**beside)
    assert getattr(changed, name) != getattr(usual, name)
    spec = tiny_spec()
    assert identity(replace(spec, engine=changed)) != identity(replace(spec, engine=usual))


def test_everything_else_that_answers_depend_on_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec(avx512=True)
    rules = InjectSpec(name="one", rules=(InjectRule(name="r", operator="experts", module=".*"),))
    specs = [
        spec,
        replace(spec, precision="int8"),
        replace(spec, device_precision="int8"),
        replace(spec, inject=rules),
        replace(spec, model=replace(spec.model, seed=1)),
        replace(spec, model=replace(spec.model, config=spec.model.config | {"rope_theta": 7.0})),
    ]
    found = [identity(one) for one in specs]
    found += [
        identity(spec, code_id="other"),
        identity(spec, setting="chat"),
        identity(spec, tokenizer=merging_tokenizer()),
    ]
    other = byte_tokenizer()
    other.chat_template = CHAT + " "
    found.append(identity(spec, tokenizer=other))
    tidy = byte_tokenizer()
    tidy.clean_up_tokenization_spaces = not tidy.clean_up_tokenization_spaces
    found.append(identity(spec, tokenizer=tidy))
    for library in ("torch", "numpy", "transformers", "tokenizers", "lm_eval"):
        with monkeypatch.context() as patch:
            patch.setattr("ktbench.eval.lm.cache.version", lambda name, of=library: version(name) + "x" * (name == of))
            found.append(identity(spec))
    assert len(set(found)) == len(found)
    assert identity(tiny_spec(avx512=True)) == found[0]
    assert identity(replace(spec, model=replace(spec.model, name="another name"))) == found[0]
    assert identity(tiny_spec(avx512=True, workload={"steps": 9})) == found[0]


def test_weights_count_by_their_content(tmp_path: Path) -> None:
    spec = tiny_spec()
    found = []
    for content in (b"one", b"two", b"one"):
        (tmp_path / "model.safetensors").write_bytes(content)
        (tmp_path / "README.md").write_bytes(content + b"...")
        found.append(identity(replace(spec, model=replace(spec.model, path=str(tmp_path)))))
    assert found[0] == found[2] != found[1]
    file = tmp_path / "one.gguf"
    file.write_bytes(b"one")
    assert identity(replace(spec, model=replace(spec.model, path=str(file)))) not in found


def test_large_files_count_by_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.engine.loading.weights_id._READ_WHOLE", 8)
    monkeypatch.setattr("ktbench.engine.loading.weights_id._END", 4)
    spec, found = tiny_spec(), set()
    for i, content in enumerate((b"aaaa....bbbb", b"aaaa....cccc", b"dddd....bbbb", b"aaaa.....bbbb")):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(content)
        found.add(identity(replace(spec, model=replace(spec.model, path=str(folder)))))
    assert len(found) == 4


def test_requests_that_differ_have_other_keys() -> None:
    requests = [("a", [1, 2], [3]), ("a", [1], [2, 3]), ("b", [1, 2], [3]), ("a", [1, 2], [3], 0.5), ("a", [12], [3])]
    assert len({request_key(*one) for one in requests}) == len(requests)


def test_how_tokens_are_drawn_counts_where_they_are() -> None:
    usual = Generation(until=("\n",), room=4, temperature=0.7, top_p=0.9, seed=1)
    changes: tuple[dict[str, Any], ...] = (
        {"top_p": 0.8},
        {"seed": 2},
        {"temperature": 0.6},
        {"repetition_penalty": 1.1},
    )

    def keys(one: Generation) -> list[str]:
        generations = (one, *(replace(one, **change) for change in changes))
        return [GenerationRequest.for_prompt("a", [1, 2], 64, each, 1).key for each in generations]

    assert len(set(keys(usual))) == 5
    greedy = keys(replace(usual, temperature=0.0))
    assert greedy[0] == greedy[1] == greedy[2] and len({*greedy, *keys(usual)}) == 7  # 0.6 is the same draw twice


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_answers_are_written_to_files_of_their_own_alone(tmp_path: Path, kind: str) -> None:
    """The folder comes from others, too: nothing is written through a link, and no reader of a pipe is waited for."""
    victim, cache = tmp_path / "victim", AnswerCache(tmp_path, "one")
    victim.write_text("a key")
    cache.path.symlink_to(victim) if kind == "link" else os.mkfifo(cache.path)
    with pytest.raises(NotWritten, match="no regular file"):
        cache.put({"a": [1]})
    assert victim.read_text() == "a key" and cache.get("a") is None


def test_answers_come_back(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "folder", "one")
    answers = {"a": ["text\nwith é and \ud800", 3], "b": [-1.25, True], "c": [float("-inf"), False]}
    cache.put(answers)
    cache.put({"a": ["newer", 1]})
    again = AnswerCache(tmp_path / "folder", "one")
    assert (again.get("a"), again.get("b"), again.get("c"), again.get("d")) == (
        ["newer", 1],
        *list(answers.values())[1:],
        None,
    )
    assert len(again) == 3
    assert AnswerCache(tmp_path / "folder", "two").get("a") is None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = AnswerCache(tmp_path_factory.mktemp("cache"), "one")
    cache.put({f"key {i}": [f"answer {i}", i] for i in range(5)})
    return cache.path


def right(cache: AnswerCache) -> bool:
    return all(cache.get(f"key {i}") in (None, [f"answer {i}", i]) for i in range(5))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_half_a_line_is_dropped_and_what_follows_is_kept(written: Path, data: st.DataObject) -> None:
    content = written.read_bytes()
    end = data.draw(st.integers(0, len(content) - 1))
    cut = written.with_name("cut.jsonl")
    cut.write_bytes(content[:end])
    cache = AnswerCache(written.parent, "cut")
    whole = content[:end].count(b"\n")
    assert right(cache)
    assert whole <= len(cache) <= whole + 1  # a last line may lack nothing but its end
    cache.put({"new": [1]})
    again = AnswerCache(written.parent, "cut")
    assert again.get("new") == [1]
    assert len(again) == len(cache)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_damaged_line_is_a_miss(written: Path, data: st.DataObject) -> None:
    content = bytearray(written.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    damaged = written.with_name("damaged.jsonl")
    damaged.write_bytes(content)
    cache = AnswerCache(written.parent, "damaged")
    assert right(cache)
    assert len(cache) >= 3  # a line break that is damaged costs two


@pytest.mark.parametrize(
    "line", ["5", "null", '["a", [1]]', '["a", [1], "no digest"]', '[["a"], 1, 2]', "[" * 100_000, "é"]
)
def test_a_line_of_something_else_is_a_miss(tmp_path: Path, line: str) -> None:
    (tmp_path / "one.jsonl").write_text(line + "\n")
    assert len(AnswerCache(tmp_path, "one")) == 0


def test_a_digest_of_another_answer_is_no_proof(written: Path) -> None:
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    lines[0][1], lines[1][1] = lines[1][1], lines[0][1]
    swapped = written.with_name("swapped.jsonl")
    swapped.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(AnswerCache(written.parent, "swapped")) == 3
