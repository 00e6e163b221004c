"""A full disk, as far as files of this process go."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_up_to(nbytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes (EFBIG): as on a full disk, a part of a write succeeds."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
