"""Who holds which page of keys and values: reference counts, and contents that are kept after their last holder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

# Told of a page, with the key of its contents, before other contents take their place.
Evicted = Callable[[bytes, int], None]


class PagePool:
    """Pages 1 to `pages`; page 0 is nobody's, for rows of a step that stand for no token.

    A page is free, held by one or several sequences, or cached: held by nobody, its contents known by a key. The
    cached page that was let go first makes room first.
    """

    def __init__(self, pages: int, evicted: Evicted) -> None:
        self.pages, self._evicted = pages, evicted
        self._free = list(range(pages, 0, -1))
        self._holders = [0] * (pages + 1)
        self._keys: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages without contents."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody holds, with contents."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._cached)

    def __contains__(self, key: bytes) -> bool:
        """Whether there is a page with these contents."""
        return key in self._page_of

    def take(self) -> int | None:
        """A page of one's own; None where all are held."""
        if not self._free and self._cached:
            self._evict()
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, key: bytes) -> int | None:
        """The page with these contents, held once more; None where there is none."""
        page = self._page_of.get(key)
        if page is not None:
            self._cached.pop(page, None)
            self._holders[page] += 1
        return page

    def name(self, page: int, key: bytes) -> None:
        """The contents of a held page are complete; the first page of a key has it."""
        if key not in self._page_of and page not in self._keys:
            self._page_of[key], self._keys[page] = page, key

    def release(self, pages: Iterable[int]) -> None:
        """One holder less, of the pages of a sequence: its last ones make room first."""
        for page in reversed(list(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._keys:
                self._cached[page] = None
            else:
                self._free.append(page)

    def drop_cached(self) -> None:
        """Let all cached pages make room."""
        while self._cached:
            self._evict()

    def forget_cached(self) -> None:
        """Like `drop_cached`, without notifying the store."""
        while self._cached:
            self._free_cached()

    def _evict(self) -> None:
        self._evicted(*self._free_cached())

    def _free_cached(self) -> tuple[bytes, int]:
        page, _ = self._cached.popitem(last=False)
        key = self._keys.pop(page)
        del self._page_of[key]
        self._free.append(page)
        return key, page
