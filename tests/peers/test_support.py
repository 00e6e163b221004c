"""What peers cannot run, told from the spec alone."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.support import unsupported
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
        ({"system": "fiddler"}, "without a CUDA device"),
    ],
)
def test_reasons(spec: dict[str, Any], why: str) -> None:
    said = unsupported(tiny_spec(**spec))
    assert why in said
    assert bool(why) == bool(said)
