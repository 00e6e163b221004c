"""What errors say in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ktbench.results import NotKept
from ktbench.spec.errors import RequestError, error_text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ESTALE, "Stale file handle", "log.jsonl"), "log.jsonl: Stale file handle"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("NVML says Unknown Error"), "NVML says Unknown Error"),
        (NotKept("log.jsonl: File too large: not kept"), "log.jsonl: File too large: not kept"),
        (RequestError("a: unknown verb"), "a: unknown verb"),
    ],
)
def test_a_file_is_named_where_an_error_is_about_one(error: Exception, says: str) -> None:
    assert error_text(error) == says


def test_what_the_system_says_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError) as missing:
        (tmp_path / "gone").read_bytes()
    assert error_text(missing.value) == f"{tmp_path / 'gone'}: No such file or directory"
