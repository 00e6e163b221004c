"""Errors at the median, at 90 %, at most, on average."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.sim.judging import quality_of

ERRORS = st.lists(st.floats(min_value=-0.99, max_value=5), min_size=1, max_size=40)


@given(ERRORS)
def test_quality_is_numpys(errors: list[float]) -> None:
    found = quality_of(errors)
    off = np.abs(np.array(errors))
    assert found.cells == len(errors)
    assert found.median == pytest.approx(np.median(off))
    assert found.p90 == pytest.approx(np.percentile(off, 90))
    assert found.worst == pytest.approx(max(off))
    assert found.bias == pytest.approx(sum(errors) / len(errors), abs=1e-12)


def test_nothing_has_no_quality() -> None:
    with pytest.raises(ValueError, match="none to judge"):
        quality_of([])
