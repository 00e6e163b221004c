"""Fonts that are named are looked up before anything is measured or drawn."""

from __future__ import annotations

import pytest

from ktbench.host.fonts import require_font
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError


def test_an_installed_font_is_taken() -> None:
    require_font("font", "DejaVu Sans")  # comes with matplotlib


def test_a_request_with_a_font_that_is_not_installed_is_refused() -> None:
    with pytest.raises(RequestError, match=r"sweep\.style\.font=DejaVu Sanz: not installed.*DejaVu Sans"):
        read_request(["+ablation=decode", "sweep.style.font=DejaVu Sanz"])
    assert read_request(["+ablation=decode", "sweep.style.font=DejaVu Sans"]).sweep.style.font == "DejaVu Sans"
