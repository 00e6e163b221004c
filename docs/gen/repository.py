"""Where things are, and how pages are written."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar inside a cell does not end it."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def toctree(pages: dict[str, str]) -> str:
    """A list of links by title, which mkdocs-literate-nav reads as a part of the navigation."""
    return "".join(f"- [{title}]({page})\n" for title, page in pages.items())
