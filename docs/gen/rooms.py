"""The picture of the rooms, drawn from the table in docs/architecture.md: `python -m docs.gen.rooms` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from docs.gen.repository import DOCS

PICTURE = DOCS / "images" / "rooms.svg"
KERNELS = "kernels"
_ROW = re.compile(r"^\| `(\w+)` \| .* \| (.*) \|$", re.MULTILINE)
_WIDTH, _BOX, _HIGH, _STEP, _MARGIN = 900, 116, 34, 86, 28

Rooms = Mapping[str, frozenset[str]]


def read_rooms(text: str) -> dict[str, frozenset[str]]:
    """What each room may import, by the table of docs/architecture.md; the kernels extension is called `kernels`."""
    rows = {name: imports for name, imports in _ROW.findall(text) if re.fullmatch(r"–|all|[a-z, ]+", imports)}
    return {name: frozenset(_imports(imports, rows.keys() - {name})) for name, imports in rows.items()}


def _imports(text: str, others: set[str]) -> set[str]:
    if text == "–":
        return set()
    return others if text == "all" else {name.strip().replace("kernels extension", KERNELS) for name in text.split(",")}


@dataclass(frozen=True)
class Picture:
    """Rooms in rows: each stands above all that it imports. A line that others imply is left out."""

    rooms: Rooms

    @cached_property
    def levels(self) -> dict[str, int]:
        """The row of each room, 0 for those that import nothing. Raises ValueError where imports go round."""
        levels: dict[str, int] = {KERNELS: 0}
        while left := self.rooms.keys() - levels.keys():
            ready = {room for room in left if self.rooms[room] <= levels.keys()}
            if not ready:
                raise ValueError(f"imports go round among {', '.join(sorted(left))}")
            levels |= {room: 1 + max((levels[one] for one in self.rooms[room]), default=-1) for room in ready}
        return levels

    @cached_property
    def lines(self) -> list[tuple[str, str]]:
        """Who imports whom, without what follows from other lines."""
        return [(room, one) for room in self.rooms for one in sorted(self._nearest(self.rooms[room]))]

    def _nearest(self, imports: frozenset[str]) -> set[str]:
        beyond = {far for one in imports for far in self._reached(one)}
        return set(imports) - beyond

    def _reached(self, room: str) -> set[str]:
        found = set(self.rooms.get(room, ()))
        return found.union(*(self._reached(one) for one in found))

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """The middle of each box, in pixels: those of a row evenly apart, each near those that it imports."""
        places: dict[str, tuple[int, int]] = {}
        for level in range(max(self.levels.values()) + 1):
            row = sorted(room for room, its in self.levels.items() if its == level)
            row.sort(key=lambda room: (self._middle(room, places), self._is_inside(room)))
            for number, room in enumerate(row):
                places[room] = (_WIDTH * (2 * number + 1) // (2 * len(row)), self._down(level))
        return places

    def _is_inside(self, room: str) -> bool:
        """Whether no line comes from the topmost room: those that do come down on the outside."""
        return all(self.levels[importer] < max(self.levels.values()) for importer, one in self.lines if one == room)

    def _middle(self, room: str, places: Mapping[str, tuple[int, int]]) -> float:
        below = [places[one][0] for importer, one in self.lines if importer == room]
        return sum(below) / len(below) if below else 0.0

    def _down(self, level: int) -> int:
        return _MARGIN + _HIGH // 2 + (max(self.levels.values()) - level) * _STEP

    def svg(self) -> str:
        """The picture."""
        high = self._down(0) + _HIGH // 2 + _MARGIN
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {high}" role="img"'
        title = "Rooms of ktbench: each may import those below that a line leads to, and what those may"
        return "\n".join(
            [
                f'{head} font-family="system-ui, sans-serif" font-size="15">',
                f"<title>{title}</title>",
                f'<rect width="{_WIDTH}" height="{high}" rx="8" fill="#ffffff"/>',
                *self._drawn_lines(),
                *self._drawn_boxes(),
                "</svg>\n",
            ]
        )

    def _drawn_lines(self) -> Iterator[str]:
        for room, one in self.lines:
            (x, y), (to_x, to_y) = self.places[room], self.places[one]
            y, to_y = y + _HIGH // 2, to_y - _HIGH // 2
            bend = min(_STEP, to_y - y) // 2
            path = f"M{x} {y} C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"
            yield f'<path d="{path}" fill="none" stroke="#8a94a6" stroke-width="1.4"/>'

    def _drawn_boxes(self) -> Iterator[str]:
        for room, (x, y) in self.places.items():
            fill = "#fdf0dc" if room == KERNELS else "#e4ecf7"
            box = f'x="{x - _BOX // 2}" y="{y - _HIGH // 2}" width="{_BOX}" height="{_HIGH}" rx="6"'
            yield f'<rect {box} fill="{fill}" stroke="#44546a"/>'
            yield f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#1b2430">{room}</text>'


def picture() -> str:
    """The picture of the rooms as docs/architecture.md has them."""
    return Picture(read_rooms((DOCS / "architecture.md").read_text(encoding="utf-8"))).svg()


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
