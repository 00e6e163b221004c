"""Every relative link and image of README and docs leads to a file, or to a page that the site makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.gen.ablations import ablation_pages
from docs.gen.outside import led, links_of, outside_pages
from docs.gen.reference import reference_pages
from docs.gen.repository import DOCS, ROOT
from tests.docs.commands import PAGES


@pytest.fixture(scope="module")
def made() -> set[Path]:
    """Pages that are made when the site is built."""
    return {(DOCS / name).resolve() for name in ablation_pages({}) | reference_pages() | outside_pages()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path, made: set[Path]) -> None:
    for link in links_of(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        assert target.exists() or target in made, f"{page.name}: {link}"


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    text = "see [the card](../evals/nano/README.md), [here](peers.md), [there](https://a.example/b.md)"
    assert led(text, "accuracy.md") == text.replace("../evals", "files/evals")


def test_a_folder_with_a_page_of_its_own_is_led_there() -> None:
    assert led("[all](../../ablations)", "howto/ablation.md") == "[all](../ablations/index.md)"


def test_code_holds_no_links() -> None:
    assert links_of("`x[i](a)` ![a](b.png)\n```\n[a](c.md)\n```\n") == ["b.png"]


def test_a_notebook_is_a_page_of_its_cells() -> None:
    text = outside_pages()["files/examples/python_api.ipynb.md"]
    assert text.startswith("# ")
    assert "```python\nimport ktbench\n" in text
