"""Run by mkdocs-gen-files: writes the pages and figures that are made from code and configuration into the site."""

from __future__ import annotations

import sys
from pathlib import Path

import mkdocs_gen_files

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.gen.ablations import ablation_pages
from docs.gen.figures import figures_of
from docs.gen.outside import outside_pages
from docs.gen.reference import reference_pages

figures = figures_of()
for page, text in (ablation_pages(figures) | reference_pages() | outside_pages()).items():
    with mkdocs_gen_files.open(page, "w") as file:
        file.write(text)
for drawn, made in {one.page: one.made for found in figures.values() for one in found}.items():
    if made is not None:
        with mkdocs_gen_files.open(drawn, "wb") as image:
            image.write(made.read_bytes())
