"""Configurations of models: those of known ones with some facts changed, planned and simulated."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from ktbench.resources import data_folder
from tests.fuzz.child import ktbench
from tests.fuzz.words import all_changed, changes, contents

_MODELS = data_folder("conf") / "model"
_WORDS = (
    ["plan"],
    ["plan", "machine=paper_a100"],
    ["run", "machine=paper_a100"],
    ["run", "machine=paper_a100", "workload=layer"],
    ["run", "machine=xeon_6454s_4x4090", "workload=prefill", "workload.prompt=64"],
    ["plan", "workload=layer", "model.experts=4"],
    ["plan", "model.layers=1"],
)
_RAW = ("", "[]", "3", "{", "[" * 50_000, '{"a":' * 5_000, '{"model_type": 1e999}', "9" * 5000, '"\\ud800"', "\ufeff{}")


@cache
def _released(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((_MODELS / f"{name}.yaml").read_text())["config"]
    return config


@cache
def _names() -> list[str]:
    """Architectures; a model that ships has weights, and its configuration with them."""
    return sorted(path.stem for path in _MODELS.glob("*.yaml") if yaml.safe_load(path.read_text())["path"] is None)


def inputs() -> st.SearchStrategy[Any]:
    """A model, changes of its facts by key or by place, and a command; or a text that is no configuration."""
    facts = st.lists(
        st.tuples(st.sampled_from(sorted({key for name in _names() for key in _released(name)})), contents()).map(list),
        max_size=3,
    )
    whole = st.fixed_dictionaries(
        {
            "model": st.sampled_from(_names()),
            "tiny": st.booleans(),
            "facts": facts,
            "changes": changes(2) | st.just([]),
            "nested": st.sampled_from([False, False, False, True]),
            "words": st.sampled_from(_WORDS),
        }
    )
    raw = st.fixed_dictionaries({"raw": st.sampled_from(_RAW) | st.text(max_size=30), "words": st.sampled_from(_WORDS)})
    return st.one_of(whole, whole, whole, whole, whole, raw)


def carry_out(data: Any) -> int:
    """The command with `model.config=FILE`."""
    Path("config.json").write_text(_text(data), errors="surrogatepass")
    verb, *words = data["words"]
    return ktbench(verb, "model.config=config.json", *words)


def _text(data: Any) -> str:
    if "raw" in data:
        return str(data["raw"])
    from tests.engine.tiny import shrunk  # imports PyTorch

    config = dict(shrunk(data["model"]) if data["tiny"] else _released(data["model"])) | dict(data["facts"])
    config = all_changed(config, data["changes"])
    return json.dumps({"model_type": "any", "text_config": config} if data["nested"] else config)
