"""Files that are exported once for all tests that read them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.gguf.export import export_gguf
from ktbench.spec.run_spec import ModelSpec
from tests.engine.gguf.tinies import restless, saved

Exported = Callable[..., tuple[ModelSpec, PreTrainedModel]]


@pytest.fixture(scope="package")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A file of a family in a type, its configuration changed or not, and the network that it was made of."""
    pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")

    @cache
    def export(name: str, kind: Any, **changes: Any) -> tuple[ModelSpec, PreTrainedModel]:
        home, network = tmp_path_factory.mktemp(name), restless(name, **changes).requires_grad_(False)
        folder, path = saved(network, home / "folder"), home / "model.gguf"
        export_gguf(folder, path, experts=kind, dense=kind, say=lambda _line: None)
        return replace(folder, path=str(path), config=inspect_checkpoint(path)), network

    def copied(name: str, kind: Any, **changes: Any) -> tuple[ModelSpec, PreTrainedModel]:
        model, network = export(name, kind, **changes)
        return model, copy.deepcopy(network)

    return copied
