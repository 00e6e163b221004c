"""A small run that asked the nano suite, and reports without figures."""

from __future__ import annotations

import pytest

from ktbench.results import Run
from tests.report.accuracy_stores import SMALL


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return SMALL.write(tmp_path_factory.mktemp("small"))


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown without the figures, which take their time."""
    monkeypatch.setattr("ktbench.cli.show.write_report", lambda run, documents: [])
