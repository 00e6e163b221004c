"""mkdocs calls this for each page that it reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.gen.outside import led


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page's text with links out of docs/ led to pages of the site."""
    return led(markdown, page.file.src_uri)
