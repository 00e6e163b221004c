"""A page for each ablation, made from its YAML: the question, what is varied, the commands, the figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from docs.gen.figures import Figure
from docs.gen.repository import ROOT, table, toctree
from ktbench.cli.catalogue import chosen_by, leading_comment, title_of, verb_of
from ktbench.config import compose
from ktbench.spec.features import BY_NAME, parse_features
from ktbench.spec.peers import PEERS
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.sweep import PRECISIONS

FOLDER = ROOT / "ablations"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """An ablation as its file has it: `text` and the `content` that it parses to."""

    name: str
    text: str
    content: dict[str, Any]

    @property
    def sweep(self) -> dict[str, Any]:
        """What is varied."""
        return dict(self.content["sweep"])

    @property
    def choices(self) -> dict[str, str]:
        """Options of groups that the file chooses: `{"model": "nano"}`."""
        return chosen_by(self.content)

    @property
    def title(self) -> str:
        """Its title; of a model that is chosen, the model's."""
        return title_of(self.content)

    @property
    def verb(self) -> str:
        """What runs it."""
        return verb_of(self.content)


@cache
def ablations() -> tuple[Ablation, ...]:
    """Every ablation, in order of names, those of folders last."""
    paths = sorted(FOLDER.rglob("*.yaml"), key=lambda path: (len(path.relative_to(FOLDER).parts), path))
    return tuple(_read(path.relative_to(FOLDER).with_suffix("").as_posix()) for path in paths)


def _read(name: str) -> Ablation:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return Ablation(name=name, text=text, content=yaml.safe_load(text))


def ablation_pages(figures: Mapping[str, Sequence[Figure]]) -> dict[str, str]:
    """Path and text of the page of each ablation, of the list of all, and of their part of the navigation."""
    every = ablations()
    pages = {f"ablations/{one.name}.md": page(one, figures.get(one.name, ())) for one in every}
    contents = {"All ablations": "index.md"} | {one.name: f"{one.name}.md" for one in every}
    return pages | {"ablations/index.md": _index(every), "ablations/SUMMARY.md": toctree(contents)}


def _index(every: Sequence[Ablation]) -> str:
    rows = [[f"[`{one.name}`]({one.name}.md)", one.title, f"`{one.verb}`"] for one in every]
    return (
        "# Ablations\n\nAn ablation is one YAML file of `ablations/`: one question, one figure, one table. "
        "`plan +ablation=NAME` says what it would do, the verb in the last column does it.\n\n"
        + table(["name", "shows", "verb"], rows)
        + "\n"
    )


def page(ablation: Ablation, figures: Sequence[Figure]) -> str:
    """The page of one ablation."""
    return "\n\n".join(_sections(ablation, figures)) + "\n"


def _sections(one: Ablation, figures: Sequence[Figure]) -> Iterator[str]:
    up = "../" * (one.name.count("/") + 1)
    yield f"# {one.title}"
    yield leading_comment(one.text)
    yield (
        "```bash\n" + "".join(f"python -m ktbench {verb} +ablation={one.name}\n" for verb in ("plan", one.verb)) + "```"
    )
    yield _effort(one)
    yield "## Figure"
    yield from ([figure.markdown(up) for figure in figures] or [_no_figure(one)])
    yield "## What is varied"
    yield from _varied(one, up)
    yield f"## The file\n\n`ablations/{one.name}.yaml`:\n\n```yaml\n{one.text.rstrip()}\n```"


def _effort(one: Ablation) -> str:
    if "arms" not in one.sweep and "design" not in one.sweep and "parts" not in one.sweep:
        return "Nothing is run: published numbers are shown."
    if "machine" in one.choices:
        return "Simulated on a machine of paper: seconds to minutes, and nothing is loaded."
    minutes = one.content.get("measure", {}).get("max_minutes", MeasureSpec().max_minutes)
    return (
        f"At most {minutes:g} minutes of timed turns; loading comes on top."
        if one.verb == "sweep"
        else ("Questions are answered by the model that ships; `limit=N` asks fewer of them.")
    )


def _no_figure(one: Ablation) -> str:
    return f"No run of this ablation is recorded with the repository; the `{one.verb}` above draws its figure."


def _varied(one: Ablation, up: str) -> Iterator[str]:
    sweep = one.sweep
    if parts := sweep.get("parts"):
        yield "Its parts share the rounds and the log:"
        yield "".join(f"- [{part}]({up}ablations/{part}.md)\n" for part in parts)
    for where, (arms, baseline) in _arms(one).items():
        yield table([f"arm{where}", "is"], [[f"`{arm}`", _arm(arm, baseline)] for arm in arms])
    if features := sweep.get("features"):
        yield f"Design `{sweep['design']}` of the features {', '.join(f'`{name}`' for name in features)}."
    if axes := sweep.get("axes"):
        rows = [[f"`{key}`", ", ".join(_values(key, axes[key]))] for key in axes]
        yield table(["axis", "values"], rows)
    if settings := _settings(one):
        yield table(["set to", ""], [[f"`{key}`", f"`{value}`"] for key, value in settings.items()])
    if published := sweep.get("published"):
        source = f"{up}files/reports/published/SOURCES.md"
        yield f"Published numbers beside it: {', '.join(f'`{name}`' for name in published)} ([sources]({source}))."


def _arms(one: Ablation) -> dict[str, tuple[list[str], str]]:
    """The arms of an ablation with their baseline, by where they are run if the device decides; nothing without any."""
    if not one.sweep.get("arms"):
        return {}
    found = {}
    for device in ("cpu", "cuda"):
        sweep = compose([f"+ablation={one.name}", f"engine.device={device}"]).run["sweep"]
        found[f" with engine.device={device}"] = sweep["arms"], sweep["baseline"]
    first, other = found.values()
    return {"": first} if first == other else found


def _arm(arm: str, baseline: str) -> str:
    said = "; ".join(_word(word) for word in _words(arm))
    return f"{said}; the baseline" if arm == baseline else said


def _words(arm: str) -> list[str]:
    """`+v+d int8` as `+v`, `+d`, `int8`."""
    return [part for word in arm.split() for part in (re.findall(r"\+\w", word) if word[0] == "+" else [word])]


def _word(word: str) -> str:
    peers = {peer.name: peer.title for peer in PEERS}
    if word in peers:
        return peers[word]
    if word == "base":
        return "Hugging Face modules, expert after expert"
    if word[0] != "+" and "=" not in word:
        return f"`{word}`"
    changed = [name for name, value in parse_features(word).items() if value != BY_NAME[name].off]
    return ", ".join(BY_NAME[name].title + (f" of {word.partition('=')[2]}" if "=" in word else "") for name in changed)


def _values(key: str, values: Any) -> Iterator[str]:
    """Each once; a list that is made when the file is read is of all formats."""
    every = list(PRECISIONS) if isinstance(values, str) else values
    yield from dict.fromkeys(_value(key, value) for value in every)


def _value(key: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f"`{value}`"
    others = [f"{other.rpartition('.')[2]} {kept}" for other, kept in value.items() if other != key]
    return f"`{value[key]}`" + (f" ({', '.join(others)})" if others else "")


def _settings(one: Ablation) -> dict[str, Any]:
    beside = {key: value for key, value in one.content.items() if key not in ("defaults", "sweep")}
    return one.choices | _flat(beside, "")


def _flat(content: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
