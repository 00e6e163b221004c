"""Files outside docs/ that its pages link to: they become pages of the site, and links are led there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.gen.repository import DOCS, ROOT

LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
WEB = ("http://", "https://", "mailto:")
# Folders of the repository that have a page of the site.
FOLDERS = {ROOT / "ablations": "ablations/index.md"}


def links_of(text: str) -> list[str]:
    """Relative links and images of a Markdown text, outside code, without anchors."""
    plain = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return [link for link in LINK.findall(plain) if not link.startswith(WEB)]


def outside_pages() -> dict[str, str]:
    """Path and text of a page for each file outside docs/ that a page links to."""
    return {page_of(path): _text(path) for path in sorted(set(_linked()))}


def page_of(path: Path) -> str:
    """Where a file of the repository is in the site: its page below `files/`."""
    inside = path.relative_to(ROOT).as_posix()
    return f"files/{inside}" if path.suffix == ".md" else f"files/{inside}.md"


def led(markdown: str, page: str) -> str:
    """The text of a page with its links out of docs/ led to pages of the site."""
    here = Path(page).parent

    def lead(link: re.Match[str]) -> str:
        target = (DOCS / here / link.group()).resolve()
        if target in FOLDERS:
            return os.path.relpath(FOLDERS[target], here)
        if target.is_relative_to(DOCS) or not target.is_file():
            return link.group()
        return os.path.relpath(page_of(target), here)

    return LINK.sub(lead, markdown)


def _linked() -> Iterator[Path]:
    for page in DOCS.rglob("*.md"):
        for link in links_of(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if not target.is_relative_to(DOCS) and target.is_file():
                yield target
    yield ROOT / "reports" / "published" / "SOURCES.md"


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(map(_cell, json.loads(text)["cells"]))
    return f"# {path.relative_to(ROOT).as_posix()}\n\n```{path.suffix.lstrip('.')}\n{text.rstrip()}\n```\n"


def _cell(cell: Mapping[str, Any]) -> str:
    """A cell of a notebook without its outputs."""
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
