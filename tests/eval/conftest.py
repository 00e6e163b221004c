"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval.tasks.local import write_all


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data set in the layout of the published one; tests leave it as it is."""
    return write_all(tmp_path_factory.mktemp("data"))


SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data folder next to this checkout")


class ByteTokenizer:
    """A token for each byte; texts begin with `bos_token_id` where there is one."""

    def __init__(self, bos: int | None = None) -> None:
        self.bos_token_id = bos

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())
