"""Rules that refuse a spec before anything loads, for the engine and for the peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.spec.engine import PlacementSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import PeerSpec
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.support import features_missing, rules_broken, unsupported
from ktbench.spec.weights import StoredLayer
from tests.tiny import tiny_spec

V = {"avx512": True}
LAYER = V | {"phase": "layer"}
STREAMED = V | {"device": "cuda", "phase": "prefill", "device_prefill_tokens": 64}
CHUNKED = V | {"device": "cuda", "phase": "prefill", "cuda_graph": True}
STREAMED_KEY = "engine.device_prefill_tokens=64"
_TRAINING = {"adapters": "both", "lora_rank": 8, "recompute": True}
TRAINED = V | {"phase": "train", "workload": _TRAINING}
HALF_AT_DEVICE = PlacementSpec(policy="uniform", ratio=0.5)
# Changes of a spec, the key or feature at fault, and a word that says what is allowed.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"precision": "int8"}, "precision=int8", "+v or +m"),
    ({"phase": "prefill", "precision": "int4_g32"}, "precision=int4_g32", "+v or +m"),
    (V | {"cuda_graph": True}, "+c", "engine.device=cuda"),
    (LAYER | {"cuda_graph": True}, "+c", "engine.device=cuda"),
    ({"cuda_graph": True, "device": "cuda"}, "+c", "add +a, +v or +m"),
    (CHUNKED, "+c", "workload.chunk"),
    (CHUNKED | {"workload": {"prompt": 8, "chunk": 9}}, "+c", "8 or less"),
    (CHUNKED | {"workload": {"prompt": 8, "chunk": 4, "batch": 2}, "device_prefill_tokens": 8}, "+c", "tokens"),
    (CHUNKED | {"workload": {"prompt": 8, "chunk": 4}, "device_prefill_tokens": "auto"}, "+c", "tokens"),
    (V | {"packed_dense": True, "device": "cuda"}, "+l", "engine.device=cuda"),
    (V | {"deferral": 1, "phase": "prefill"}, "engine.deferral=1", "engine.defer_prefill=true"),
    (V | {"skipping": 1, "phase": "prefill"}, "engine.skipping=1", "engine.defer_prefill=true"),
    (V | {"deferral": "auto"}, "engine.deferral=auto", "engine.roles=split"),
    (LAYER | {"deferral": 1}, "workload.phase=layer", "deferral"),
    ({"phase": "layer", "skipping": 1}, "workload.phase=layer", "skipping"),
    (LAYER | {"workload": {"routing": "recorded"}}, "workload.routing=recorded", "workload.trace"),
    (LAYER | {"workload": {"batch": 3, "active_experts": 4}}, "workload.active_experts=4", "6"),
    (V | {"numa": True, "domains": 2, "threads": 1}, "+n", "engine.threads=1"),
    (V | {"handover": "flags"}, "engine.handover=flags", "engine.device=cuda"),
    (V | {"batching": True}, "+b", "served"),
    ({"chunked_prefill": True}, "+k", "served"),
    ({"prefix_cache": True}, "+p", "served"),
    (TRAINED | {"device": "cuda", "placement": HALF_AT_DEVICE}, "engine.placement.policy=uniform", "on the cores"),
    (TRAINED | {"cuda_graph": True}, "+c", "leave it out"),
    (TRAINED | {"packed_dense": True}, "+l", "workload=train"),
    (TRAINED | {"skipping": 1}, "skipping=1", "workload=train"),
    (TRAINED | {"deferral": 1}, "deferral=1", "workload=train"),
    (TRAINED | {"batching": True}, "+b", "served"),
    (TRAINED | {"roles": "split"}, "engine.roles=split", "workload=train"),
    ({"system": "transformers", "phase": "train", "workload": _TRAINING}, "workload.phase=train", "prefill"),
    (V | {"static_batch": 4}, "static_batch=4", "served"),
    (STREAMED | {"device": "cpu"}, STREAMED_KEY, "engine.device=cuda"),
    (STREAMED | {"phase": "decode"}, STREAMED_KEY, "prefill"),
    (STREAMED | {"precision": "q4_k"}, STREAMED_KEY, "bf16, int8, int4_g32"),
    (STREAMED | {"numa": True, "domains": 2}, STREAMED_KEY, "leave out +n"),
    (STREAMED | {"placement": HALF_AT_DEVICE}, STREAMED_KEY, "engine.placement"),
    ({"system": "kt-kernel"}, "workload.phase=decode", "layer"),
    ({"system": "llama.cpp", "phase": "layer"}, "workload.phase=layer", "prefill and decode"),
    ({"system": "transformers", "precision": "q8_0"}, "precision=q8_0", "bf16"),
    ({"system": "llama.cpp", "precision": "int4_g64"}, "precision=int4_g64", "bf16, q8_0, q4_0, int8"),
    ({"system": "llama.cpp", "device_precision": "int4_g64"}, "device_precision=int4_g64", "llama.cpp"),
    ({"system": "llama.cpp", "workload": {"routing": "zipf"}}, "workload.routing=zipf", "workload.routing=model"),
    ({"system": "llama.cpp", "workload": {"shortest": 2}}, "workload.shortest=2", "workload.shortest=null"),
    ({"system": "llama-bench", "workload": {"chunk": 2}}, "workload.chunk=2", "workload.chunk=null"),
    (
        {"system": "llama-server", "phase": "serve", "workload": {"stream": StreamSpec(turns=2)}},
        "workload.stream.turns=2",
        "workload.stream.turns=1",
    ),
    ({"system": "fiddler"}, "engine.device=cpu", "engine.device=cuda"),
    ({"system": "transformers", "device": "cuda"}, "engine.device=cuda", "engine.device=cpu"),
]
ALLOWED: list[dict[str, Any]] = [
    V | {"precision": "int8"},
    {"phase": "prefill", "amx": True, "precision": "int4_g128"},
    V | {"handover": "flags", "device": "cuda", "cuda_graph": True, "deferral": 1},
    CHUNKED | {"workload": {"prompt": 8, "chunk": 8}},
    CHUNKED | {"workload": {"prompt": 8, "chunk": 3}, "deferral": 1, "defer_prefill": True},
    CHUNKED | {"workload": {"prompt": 8, "chunk": 4}, "device_prefill_tokens": 8},
    STREAMED,
    STREAMED | {"precision": "int4_g32", "device_prefill_tokens": "auto"},
    V | {"numa": True, "domains": 2, "threads": 2},
    V | {"numa": True},
    {"phase": "layer"},
    {"phase": "layer", "precision": "int8"},
    LAYER | {"precision": "int8", "workload": {"batch": 4, "active_experts": 8}},
    LAYER | {"workload": {"routing": "recorded", "trace": "file.npz"}},
    {"system": "llama.cpp"},
    {"system": "llama.cpp", "precision": "int8", "device_precision": "q8_0"},
    {"system": "transformers"},
    {"system": "transformers", "phase": "layer"},
    {"system": "kt-kernel", "phase": "layer", "precision": "int4_g64"},
    {"system": "vllm", "phase": "layer"},
    TRAINED,
    TRAINED | {"device": "cuda"},
]
NOTHING_MISSING = dict.fromkeys((feature.name for feature in FEATURES), "")


@pytest.mark.parametrize(("changes", "where", "allowed"), REFUSED)
def test_the_first_reason_names_the_key_and_what_is_allowed(changes: dict[str, Any], where: str, allowed: str) -> None:
    spec = tiny_spec(**changes)
    reason = next(rules_broken(spec))
    assert reason.where == where
    assert allowed in reason.why
    assert unsupported(spec) == str(reason)
    assert "\n" not in str(reason)


@pytest.mark.parametrize("changes", ALLOWED)
def test_no_reason(changes: dict[str, Any]) -> None:
    assert unsupported(tiny_spec(**changes)) == ""


@pytest.mark.parametrize("changes", [LAYER, {"system": "transformers", "phase": "layer"}])
def test_a_layer_of_a_checkpoint_is_refused(changes: dict[str, Any]) -> None:
    spec = tiny_spec(**changes)
    (reason,) = rules_broken(replace(spec, model=replace(spec.model, path="/weights")))
    assert reason.where == "model.path=/weights"


@pytest.mark.parametrize("path", [None, "/weights"])
def test_a_lattice_comes_from_a_file_that_has_it(path: str | None) -> None:
    spec = tiny_spec(**V, precision="iq2")
    here = replace(spec, model=replace(spec.model, path=path))
    (reason,) = rules_broken(here)
    assert reason.where == "precision=iq2"
    layer = StoredLayer(gate="iq2", up="iq2", down="q3_k", nbytes=1)
    stored = replace(here.model, stored=(layer,) * here.model.shape.moe_layers)
    assert unsupported(replace(here, model=stored)) == ("" if path else str(reason))


@pytest.mark.parametrize(
    ("system", "precision", "width", "step"),
    [
        ("vllm", "bf16", 48, 32),
        ("sglang", "int8", 48, 32),
        ("zentorch", "int4_g64", 96, 64),
        ("sglang", "int4_g128", 96, 128),
    ],
)
def test_widths_are_whole_groups_of_the_peer(system: str, precision: str, width: int, step: int) -> None:
    spec = tiny_spec(system=system, phase="layer", precision=precision)
    widths = (
        {"hidden_size": width, "moe_intermediate_size": step},
        {"hidden_size": step, "moe_intermediate_size": width},
    )
    for other in widths:
        (reason,) = rules_broken(replace(spec, model=replace(spec.model, config={**spec.model.config, **other})))
        assert reason.where == f"system={system} precision={precision}"
        assert f"multiples of {step}," in reason.why
    whole = {"hidden_size": step, "moe_intermediate_size": 2 * step}
    assert unsupported(replace(spec, model=replace(spec.model, config={**spec.model.config, **whole}))) == ""


def test_batched_mm_may_copy_so_many_bytes() -> None:
    peer = PeerSpec(implementation="batched_mm")
    (reason,) = rules_broken(tiny_spec(system="transformers", peer=peer, workload={"batch": 2**20}))
    assert reason.where == "peer.implementation=batched_mm"
    assert unsupported(tiny_spec(system="transformers", peer=peer)) == ""


def test_features_that_a_machine_lacks_are_named() -> None:
    missing = NOTHING_MISSING | {"numa": "one NUMA node", "cuda_graph": "no CUDA device"}
    assert not list(features_missing(tiny_spec(avx512=True, dynamic=True), missing))
    found = features_missing(tiny_spec(avx512=True, numa=True, cuda_graph=True), missing)
    assert [str(one) for one in found] == ["+n: one NUMA node", "+c: no CUDA device"]


def test_logical_domains_need_no_numa_nodes() -> None:
    missing = NOTHING_MISSING | {"numa": "one NUMA node", "amx": "no AMX"}
    assert not list(features_missing(tiny_spec(avx512=True, numa=True, domains=2), missing))
    assert [one.where for one in features_missing(tiny_spec(amx=True, numa=True, domains=2), missing)] == ["+m"]
