"""Figures of shares, answers and published numbers in a real browser: what a pointer finds, colours, a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ktbench.report.documents import documents_of
from ktbench.report.web.page import page_html
from ktbench.results import Run
from tests.report.html.chromium import backend, drive
from tests.report.html.runs import in_memory
from tests.report.html.test_answers import COUNTS
from tests.report.html.test_shares import STORE

BROWSER = backend()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser: neither playwright with a Chromium nor PyQt6-WebEngine is installed"
)

SCRIPT = """
const data = JSON.parse(document.querySelector("#data").textContent), tip = document.querySelector("#tip");
const pointed = (plot, spot) => {
  const box = plot.getBoundingClientRect();
  const at = { clientX: box.left + spot[0] / 1000 * plot.clientWidth, clientY: box.top + spot[1] };
  plot.dispatchEvent(new PointerEvent("pointermove", { ...at, bubbles: true, pointerType: "mouse" }));
  const found = [tip.hidden ? "" : tip.textContent, data.cards[spot[2]][0]];
  plot.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
  return found;
};
const tips = {};
for (const plot of document.querySelectorAll(".plot[data-find='rows'], .plot[data-find='cells']"))
  tips[plot.getAttribute("aria-label")] = data.plots[plot.id].map((spot) => pointed(plot, spot));
const linear = (part) => (part <= 10.3 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
const light = (color) => {
  const [r, g, b] = color.match(/[0-9.]+/g).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrasts = () => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const cells = [...plot.querySelectorAll(".cell")], paper = getComputedStyle(document.body).backgroundColor;
  return [...plot.querySelectorAll(".in")].map((text, n) => {
    const fill = getComputedStyle(cells[n]).fill, back = light(fill === "none" ? paper : fill);
    const front = light(getComputedStyle(text).fill), [low, high] = [back, front].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
});
const found = {};
for (const theme of ["light", "dark"]) {
  document.documentElement.dataset.theme = theme;
  found[theme] = Math.min(100, ...contrasts());
}
const root = document.documentElement, wide = root.clientWidth;
const beyond = [...document.querySelectorAll(".plot text")].filter((text) => text.getBoundingClientRect().right > wide);
return { tips, contrasts: found, overflow: root.scrollWidth - wide, beyond: beyond.map((text) => text.textContent) };
"""


def opened(path: Path, run: Run) -> dict[str, Any]:
    path.write_text(page_html(run, documents_of(run)), encoding="utf-8")
    return drive(BROWSER or "", path, 390, SCRIPT)


def test_shares_answer_to_a_pointer_on_a_phone(tmp_path: Path) -> None:
    told = opened(tmp_path / "page.html", in_memory(STORE))
    value = told["value"]
    found = {name: tip for tip, name in value["tips"]["shares; arrow keys go from one to the next"]}
    assert list(found) == ["+v", "+d", "deferral=3", "all together"]
    for words in ("share (×)", "[", "rounds12", "avx512_calls", "measured", "python -m ktbench sweep"):
        assert words in found["+v"]
    pairs = value["tips"]["interactions; arrow keys go from one to the next"]
    assert [name for _, name in pairs] == ["+v with deferral=3", "+d with deferral=3"]
    assert all(tip.startswith(name) for tip, name in pairs)
    assert value["overflow"] <= 0 and value["beyond"] == [] and told["errors"] == []


def test_heat_maps_answer_cell_by_cell_and_can_be_read_in_both_colours(tmp_path: Path) -> None:
    told = opened(tmp_path / "page.html", COUNTS.write(tmp_path))
    value = told["value"]
    heat = {label: found for label, found in value["tips"].items() if label.endswith("from cell to cell")}
    assert len(heat) == 4
    assert all(tip.startswith(name) for found in heat.values() for tip, name in found)
    ours = heat["deferral, measured (nano); arrow keys go from cell to cell"]
    assert ours[1][1] == "+v+d deferral=2: coding" and "difference (points)" in ours[1][0]
    assert min(value["contrasts"].values()) >= 4.5
    assert value["overflow"] <= 0 and value["beyond"] == [] and told["errors"] == []
