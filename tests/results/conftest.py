"""The small run of the tests of the report."""

from __future__ import annotations

from tests.report.conftest import no_files, small

__all__ = ["no_files", "small"]
