"""Figures as files, and as SVG that a page embeds: text stays text, colours follow the page, ids are the page's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.text import Text

from ktbench.files import write_whole
from ktbench.report.figures.sheet import Sheet
from ktbench.report.figures.style import DPI

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_NOT_DRAWN = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>|<g/>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_ATTRIBUTE = re.compile(r' ([\w:-]+)="([^"]*)"')
_DECIMALS = re.compile(r"(\d\.\d\d)\d+")
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_REFERENCE = re.compile(r"(url\(#|^#)([^)]*)")
_FONT_FAMILY = re.compile(r"font-family: [^;]*;? ?")
_BETWEEN_TAGS = re.compile(r">\s*\n\s*<")
_BETWEEN_STEPS = re.compile(r"\s*\n\s*|(?<=[A-Za-z]) ")
_FLAT = re.compile(r"rotate\(-?0 ")
# A colour on the dark page: hue and chroma kept in OKLab (Ottosson 2020), lightness inverted; white becomes the dark
# paper, #14171b. The exponent is below 1: greys become lighter, as letters on dark paper need more contrast.
_DARK = "oklab(from #{} calc(.204 + .796*pow(1 - l,.8)) calc(a - .002*l) calc(b - .009*l))"


@dataclass(kw_only=True, slots=True)
class Stylesheet:
    """The CSS of the figures that a page embeds: a class for each style, a variable for each colour.

    Colours are light and dark in one, `light-dark(#1d3f5e, #81a7ce)`, as the page's `color-scheme` asks for.
    """

    classes: dict[str, str] = field(default_factory=dict)
    colours: set[str] = field(default_factory=set)

    def class_of(self, style_: str) -> str:
        """The class for a style, with the page's font and colours."""
        themed = self.themed(_FONT_FAMILY.sub("", style_)).strip("; ")
        return self.classes.setdefault(themed, f"s{len(self.classes)}")

    def themed(self, text: str) -> str:
        """The text with colours as variables."""
        self.colours.update(_COLOUR.findall(text))
        return _COLOUR.sub(r"var(--c-\1)", text)

    @property
    def css(self) -> str:
        """The variables and the classes."""
        colours = sorted(self.colours | {"000000"})
        variables = "".join(f"--c-{one}:light-dark(#{one},{_DARK.format(one)});" for one in colours)
        shorter = {name: style_.replace(": ", ":").replace("; ", ";") for style_, name in self.classes.items()}
        rules = (f".figure .{name}{{{style_}}}" for name, style_ in shorter.items())
        return "\n".join([f":root{{{variables}}}", *rules])


def save(figure: Sheet, folder: Path, name: str, *, caption: bool = True) -> list[Path]:
    """Write `<name>.pdf`, `.svg` and `.png` into a folder; without `caption` and title for a paper, which sets its own.

    Raises NotWritten.
    """
    written = []
    box = None if caption else figure.plots_box(title=False)
    figure.show_caption(caption)
    for suffix, metadata in _METADATA.items():
        drawn = BytesIO()  # a disk that fills while matplotlib writes a PDF ends in an error of its own
        with style.context(figure.look):
            figure.savefig(drawn, format=suffix, dpi=DPI, metadata=metadata, bbox_inches=box)
        written.append(write_whole(folder / f"{name}.{suffix}", drawn.getvalue()))
    figure.show_caption(True)
    return written


def embedded(figure: Sheet, name: str, styles: Stylesheet) -> str:
    """The `<svg>` element of a figure, without its caption; ids begin with `name`, as they hold for the page.

    What it refers to of `styles` is added there.
    """
    text = _svg_with_text(figure)
    text = _NOT_DRAWN.sub("", text[text.index("<svg") :])
    kept = {*re.findall(r"url\(#([^)]*)\)", text), *re.findall(r'href="#([^"]*)"', text), *figure.marks}

    def attribute(found: re.Match[str]) -> str:
        key, value = found.groups()
        if key == "id":
            return f' id="{name}-{value}"' if value in kept else ""
        if key.startswith("xmlns") or (key == "transform" and _FLAT.match(value)):
            return ""
        if key == "fill":  # var() works in CSS, not in an attribute
            return f' class="{styles.class_of(f"fill: {value}")}"'
        value = _REFERENCE.sub(rf"\1{name}-\2", value)
        if key == "style":
            return f' class="{styles.class_of(value)}"'
        if key == "d":
            value = _BETWEEN_STEPS.sub("", value)
        value = _DECIMALS.sub(lambda number: number[1].rstrip("0").rstrip("."), value)
        return f' {key.removeprefix("xlink:")}="{styles.themed(value)}"'

    def tag(found: re.Match[str]) -> str:
        return _ATTRIBUTE.sub(attribute, found[0])

    body = _TAG.sub(tag, _BETWEEN_TAGS.sub("><", text)).strip()
    head, end, rest = body.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    return f'<svg {box[0]} aria-hidden="true"{end}{rest}'


def _svg_with_text(figure: Sheet) -> str:
    """SVG without the caption, and without halos, which matplotlib can draw around outlines of letters alone."""
    file = StringIO()
    halos = [(text, text.get_path_effects()) for text in figure.findobj(Text) if text.get_path_effects()]
    figure.show_caption(False)
    for text, _ in halos:
        text.set_path_effects([])
    with style.context([*figure.look, {"svg.fonttype": "none"}]):
        figure.savefig(file, format="svg", metadata=_METADATA["svg"], bbox_inches=figure.plots_box())
    for text, effects in halos:
        text.set_path_effects(effects)
    figure.show_caption(True)
    return file.getvalue()
