"""The lock on a run's log: the kernel frees it when its holder ends, however that ends."""

from __future__ import annotations

import fcntl
from typing import IO

from ktbench.results.store.lines import StoreError


def try_lock(file: IO[bytes], *, shared: bool = False) -> bool:
    """Lock an open log until it is closed; False where another process holds it.

    A `shared` lock only keeps writers away. Raises StoreError where the file system gives no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"{file.name}: {error.strerror}: this file system gives no locks; put runs/ on one that does"
        ) from None
    return True
