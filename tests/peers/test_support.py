"""What peers cannot run, from the spec alone, and the modules that open them."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

import pytest

from ktbench.peers.support import unsupported
from ktbench.spec.peers import PEERS, Peer
from tests.tiny import tiny_spec


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"system": "llama.cpp"}, ""),
        ({"system": "llama.cpp", "precision": "int8", "device_precision": "q8_0"}, ""),
        ({"system": "transformers"}, ""),
        ({"system": "transformers", "phase": "layer"}, ""),
        ({"system": "kt-kernel", "phase": "layer", "precision": "int4_g64"}, ""),
        ({"system": "kt-kernel"}, "kt-kernel runs layer, not workload.phase=decode"),
        ({"system": "llama.cpp", "phase": "layer"}, "llama.cpp runs prefill and decode, not workload.phase=layer"),
        (
            {"system": "transformers", "precision": "q8_0"},
            "transformers has no format of as many bits as precision=q8_0",
        ),
        ({"system": "llama.cpp", "precision": "int4_g64"}, "as precision=int4_g64, it has bf16, q8_0, q4_0, int8"),
        ({"system": "llama.cpp", "device_precision": "int4_g64"}, "as many bits as device_precision=int4_g64"),
        ({"system": "llama.cpp", "workload": {"routing": "zipf"}}, "set workload.routing=model"),
        ({"system": "llama.cpp", "workload": {"shortest": 2}}, "leave workload.shortest=null"),
        ({"system": "llama-bench", "workload": {"chunk": 2}}, "leave workload.chunk=null"),
        ({"system": "fiddler"}, "engine.device=cuda"),
    ],
)
def test_reasons(spec: dict[str, Any], why: str) -> None:
    said = unsupported(tiny_spec(**spec))
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_row_names_a_module_that_opens_it(peer: Peer) -> None:
    assert list(signature(import_module(peer.opener).open_peer).parameters) == ["specs", "host"]
