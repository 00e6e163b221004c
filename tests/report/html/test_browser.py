"""The page in a real browser. Without one these skip: `pip install -e '.[browser]'` brings one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ktbench.report.documents import documents_of
from ktbench.report.web.page import page_html
from tests.report.html.chromium import backend, drive
from tests.report.html.runs import DECODE, in_memory, many_cells
from tests.report.synthetic import Arm, Store

BROWSER = cache(backend)
pytestmark = pytest.mark.skipif(
    BROWSER() is None, reason="no browser: neither PyQt6-WebEngine nor a Chromium is installed"
)

# Everything of one page in one go: a browser takes seconds to start.
SCRIPT = """
const told = {};
const table = document.querySelector("table.rows");
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const heads = [...table.querySelectorAll("thead th")], time = heads.find((head) => head.textContent.startsWith("time"));
told.planned = names();
time.querySelector("button").click();
told.ascending = [names(), time.getAttribute("aria-sort")];
time.querySelector("button").click();
told.descending = [names(), time.getAttribute("aria-sort")];
time.querySelector("button").click();
told.again = names();
const input = document.querySelector("input[data-table]");
input.value = "unsupported";
input.dispatchEvent(new Event("input"));
told.filtered = [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
told.count = document.querySelector("output").textContent;
input.value = "";
input.dispatchEvent(new Event("input"));
const plot = document.querySelector(".figure"), tip = document.querySelector("#tip");
const box = document.getElementById(`${plot.id}-mark-1`).getBoundingClientRect();
told.hiddenAtFirst = tip.hidden;
const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2,
  bubbles: true, pointerType: "mouse" };
plot.dispatchEvent(new PointerEvent("pointermove", at));
told.hover = tip.textContent;
told.inside = tip.getBoundingClientRect().right <= innerWidth;
plot.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
told.left = tip.hidden;
plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, cancelable: true }));
told.key = tip.textContent;
plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
told.kept = tip.classList.contains("kept") && getComputedStyle(tip.querySelector("button")).display !== "none";
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
told.closed = tip.hidden;
const paper = () => getComputedStyle(document.body).backgroundColor;
const theme = document.querySelector("#theme");
theme.click();
told.light = paper();
theme.click();
told.dark = paper();
told.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
return told;
"""
WORDS = """
const table = document.querySelector("table.rows"), rows = () => [...table.tBodies[0].rows];
const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
const column = (name) => rows().map((row) => row.cells[heads.indexOf(name)].textContent);
const sorted = (name) => {
  table.querySelectorAll("thead button")[heads.indexOf(name)].click();
  return column(name);
};
const input = document.querySelector("input[data-table]");
const left = (words) => {
  input.value = words;
  input.dispatchEvent(new Event("input"));
  return rows().filter((row) => !row.hidden).length;
};
const found = Object.fromEntries(["164", "4bf", "copy", "64 bf16"].map((words) => [words, left(words)]));
left("");
const words = [sorted("precision"), sorted("precision")];
const numbers = [sorted("workload.prompt"), sorted("workload.prompt")];
["null", "—"].forEach((text, n) => { rows()[n].cells[heads.indexOf("workload.prompt")].textContent = text; });
sorted("workload.prompt");
const mixed = [sorted("workload.prompt"), sorted("workload.prompt")];
return { found, words, numbers, mixed };
"""
OVERFLOW = """
const root = document.documentElement, timing = performance.getEntriesByType("navigation")[0];
return [root.scrollWidth - root.clientWidth, document.querySelectorAll("*").length,
        timing.domContentLoadedEventEnd, timing.loadEventEnd];
"""


def opened(path: Path, run: Any, width: int, script: str) -> dict[str, Any]:
    path.write_text(page_html(run, documents_of(run)), encoding="utf-8")
    return drive(BROWSER() or "", path, width, script)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return opened(tmp_path_factory.mktemp("page") / "page.html", in_memory(DECODE), 1200, SCRIPT)


def test_asks_no_network_and_the_console_stays_silent(told: dict[str, Any]) -> None:
    assert [url for url in told["requests"] if not url.startswith(("file:", "data:"))] == []
    assert told["errors"] == []


def test_a_heading_sorts_turns_round_and_gives_the_plan_back(told: dict[str, Any]) -> None:
    value = told["value"]
    assert value["ascending"] == [["+v+d", "+v", "base", "+v+d+n", "+v+d+n+c"], "ascending"]
    assert value["descending"] == [["base", "+v", "+v+d", "+v+d+n", "+v+d+n+c"], "descending"]
    assert value["again"] == value["planned"] == ["base", "+v", "+v+d", "+v+d+n", "+v+d+n+c"]


def test_the_filter_leaves_rows_with_the_words(told: dict[str, Any]) -> None:
    assert told["value"]["filtered"] == ["+v+d+n", "+v+d+n+c"]
    assert told["value"]["count"] == "2 of 5 rows"


def test_words_sort_and_the_filter_looks_inside_cells(tmp_path: Path) -> None:
    store = Store(arms=(Arm(label="base"),), prompts=(1024, 64), precisions=("int8", "bf16"), rounds=6, run="words")
    value = opened(tmp_path / "page.html", in_memory(store), 1200, WORDS)["value"]
    assert value["words"] == [["bf16", "bf16", "int8", "int8"], ["int8", "int8", "bf16", "bf16"]]
    assert value["numbers"] == [["64", "64", "1024", "1024"], ["1024", "1024", "64", "64"]]
    assert value["mixed"] == [["64", "64", "null", "—"]] * 2
    assert value["found"] == {"164": 0, "4bf": 0, "copy": 0, "64 bf16": 1}


def test_hovering_a_bar_shows_value_interval_evidence_and_command(told: dict[str, Any]) -> None:
    value = told["value"]
    assert value["hiddenAtFirst"] and value["left"] and value["inside"]
    for words in ("+v", "time (ms/step)", "[", "avx512_calls", "measured", "python -m ktbench run"):
        assert words in value["hover"]


def test_a_keyboard_walks_through_a_figure_and_keeps_what_it_shows(told: dict[str, Any]) -> None:
    value = told["value"]
    assert value["key"].startswith("base")
    assert value["kept"] and value["closed"]


def test_light_and_dark(told: dict[str, Any]) -> None:
    light, dark = told["value"]["light"], told["value"]["dark"]
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(20, 23, 27)"


def test_a_thousand_cells_fit_a_phone(tmp_path: Path) -> None:
    answer = opened(tmp_path / "page.html", many_cells(1000), 420, OVERFLOW)
    overflow, elements, ready_ms, loaded_ms = answer["value"]
    print(f"1,000 cells: {elements} elements, ready after {ready_ms:.0f} ms, loaded after {loaded_ms:.0f} ms")
    assert overflow <= 0
    assert answer["errors"] == []
