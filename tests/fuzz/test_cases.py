"""Inputs that failed once: each is accepted or refused as any other now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.forks import Server, fault_of, serving
from tests.loaded import Loader

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.fixture(scope="module")
def server(loader: Loader) -> Iterator[Server]:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    names = sorted({json.loads(case.read_text())["target"] for case in CASES})
    with loader.stands_in(), serving(names) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_an_input_that_failed_once_is_taken_now(case: Path, server: Server) -> None:
    content = json.loads(case.read_text())
    fault = fault_of(server.attempt(content["target"], content["data"]))
    assert fault is None, f"{fault.kind}\n{fault.text}"
