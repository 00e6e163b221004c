"""The figures of ablations: of recorded runs, of simulated ones, and pictures that lie in docs/images."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.gen.repository import DOCS, ROOT

RECORDED = ROOT / "reports" / "recorded"
# Drawn once for each state of what they depend on; `build` is no part of the repository.
KEPT = ROOT / "build" / "docs"
SIMULATED = ("paper/all", "device_prefill", "what_if", "what_if_gpu")
_MADE_FROM = ("ablations", "conf", "reports/published", "ktbench/sim", "ktbench/report")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture at `page` below the docs, `made` for it (None: it lies there), and where its numbers are from."""

    page: str
    caption: str
    made: Path | None = None

    def markdown(self, up: str) -> str:
        """The picture and its caption in a page from which `up` leads to the docs."""
        return f"![{self.caption}]({up}{self.page}){{ width=720 }}\n\n*{self.caption}*"


def figures_of() -> dict[str, list[Figure]]:
    """Figures by ablation. A recorded run's stand before simulated ones, those before a picture in docs/images."""
    found: dict[str, list[Figure]] = {}
    for name, figure in [*_recorded(), *_simulated()]:
        found.setdefault(name, []).append(figure)
    lying = {path.stem: path for path in (DOCS / "images").glob("*.png")}
    for name in lying.keys() - found.keys():
        found[name] = [Figure(page=f"images/{name}.png", caption="Where it was measured is said in the README.")]
    return found


def recorded_runs() -> list[Path]:
    """Folders of the runs that come with the repository."""
    return sorted(log.parent for log in RECORDED.glob("*/*/log.jsonl"))


def _recorded() -> Iterator[tuple[str, Figure]]:
    for folder in recorded_runs():
        run = folder.relative_to(ROOT).as_posix()
        for drawn in _drawn_again(folder):
            part = drawn.stem.removeprefix("figure").removeprefix("-")
            name = f"{folder.name}/{part}" if part else folder.name
            figure = Figure(page=f"images/{run}/{drawn.name}", caption=f"Measured: {run}.", made=drawn)
            yield name, figure
            if part:
                yield folder.name, figure


def _drawn_again(folder: Path) -> list[Path]:
    """The figures of a run, from its log alone."""
    from ktbench.report.write import write_report
    from ktbench.results import read_run

    def draw(copy: Path) -> None:
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report"))
        write_report(read_run(copy), ["figure"])

    kept = _made_once(KEPT / _digest([folder, ROOT / "ktbench" / "report"]) / folder.name, draw)
    return sorted((kept / "report").glob("figure*.svg"))


def _simulated() -> Iterator[tuple[str, Figure]]:
    for name in SIMULATED:
        folder, _, last = name.rpartition("/")
        caption = "Published values hollow, simulated ones filled." if folder else "Simulated."
        for drawn in _swept(name):
            part = drawn.stem.partition("-")[2]
            figure = Figure(
                page=f"images/simulated/{drawn.name}" if part else f"images/simulated/{last}.svg",
                caption=caption,
                made=drawn,
            )
            for shown in {f"{folder}/{part}" if part else name, name, *_wholes(folder, part)}:
                yield shown, figure


def _wholes(folder: str, part: str) -> list[str]:
    """The ablation that `fig14_decode` is a part of."""
    return [f"{folder}/{part.partition('_')[0]}"] if "_" in part else []


def _swept(name: str) -> list[Path]:
    """The figures of a simulated ablation, swept unless it was before."""
    run = name.replace("/", "-")

    def sweep(home: Path) -> None:
        home.mkdir()
        words = ["sweep", f"+ablation={name}", f"run_name={run}"]
        subprocess.run([sys.executable, "-m", "ktbench", *words], cwd=home, check=True, stdout=subprocess.DEVNULL)

    report = _made_once(KEPT / _digest([ROOT / one for one in _MADE_FROM]) / run, sweep) / "runs" / run / "report"
    return sorted(report.glob("published-*.svg")) or sorted(report.glob("figure*.svg"))


def _made_once(kept: Path, make: Callable[[Path], None]) -> Path:
    """The folder `kept`, which `make` makes under another name: one that a stopped build has left is not whole."""
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept.parent, prefix="unfinished-") as beside:
            made = Path(beside) / kept.name
            make(made)
            made.rename(kept)
    return kept


def _digest(folders: list[Path]) -> str:
    files = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".yaml", ".csv", ".py", ".jsonl")
    )
    state = hashlib.sha256()
    for path in files:
        state.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return state.hexdigest()[:12]
