"""Bounds that pages derive are those of the recorded model."""

from __future__ import annotations

import re

import numpy as np
import pytest

from docs.gen.repository import DOCS, ROOT
from ktbench.results import read_run

ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| \**([\d.]+)×?\** \|$", re.MULTILINE)


def numbers(row: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(float(cell.replace(",", "")) for cell in row)


def test_what_batching_gains_at_most() -> None:
    (cell, *_) = read_run(ROOT / "reports/recorded/zen4_2_cores/concurrency").header.cells
    shape = cell.spec.model.shape
    shared_m = (shape.layers * shape.attention_params + shape.vocab * shape.hidden) / 1e6
    rng = np.random.default_rng(0)
    rows = [*map(numbers, ROW.findall((DOCS / "serving_benchmark.md").read_text(encoding="utf-8")))]
    assert [row[0] for row in rows] == [1, 4, 8, 16, 17]
    for users, met, experts_m, others_m, all_m, gain in rows:
        choices = rng.random((500, int(users), shape.experts)).argsort(axis=2)[..., : shape.top_k]
        assert met == pytest.approx(np.mean([len(np.unique(step)) for step in choices]), rel=0.02)
        assert experts_m == pytest.approx(met * shape.moe_layers * shape.expert_params / 1e6, abs=1)
        assert others_m == pytest.approx(shared_m, abs=1)
        assert all_m == pytest.approx(experts_m + others_m, abs=1)
        assert gain == pytest.approx(users * rows[0][4] / all_m, abs=0.06)
