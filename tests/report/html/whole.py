"""Whether a page is well formed and needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "hr", "img"}


def assert_whole(text: str) -> None:
    """What opens closes, no id is there twice, and nothing outside the page is referred to."""
    found = Balance()
    found.feed(text)
    found.close()
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    anchors = {link for link in found.links if not link.startswith("data:")}
    assert anchors <= {f"#{name}" for name in found.ids}
    assert "@import" not in text and not re.search(r"url\((?!#)", text)


class Balance(HTMLParser):
    """Every element that opens closes in order, and no id is there twice."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert len(named) == len(attrs), f"{tag}: an attribute twice"
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [value or "" for name, value in attrs if name in ("href", "xlink:href", "src")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing that is open"
