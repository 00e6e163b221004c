"""The commands that README and docs show, as words, and what stands for their placeholders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.gen.repository import DOCS, ROOT
from ktbench.cli import VERBS

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
KTBENCH = ("python", "-m", "ktbench")
_FENCE = re.compile(r"^(?P<mark>```+)(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=mark)\s*$", re.DOTALL | re.MULTILINE)
_SHELL = ("bash", "sh", "console", "shell")
_INLINE = re.compile(rf"`((?:python -m ktbench )?(?:{'|'.join(VERBS)}) [^`\n]*)`")
_BOOTSTRAP = re.compile(r"^python3 bootstrap\.py (--\w+=\S+ +)*(?!--)(?=\S)")
# Words of placeholders, as whole words or after the last `=`; files are made by the fixture `here`.
PLACEHOLDERS = {
    "+ablation=NAME": "+ablation=decode",
    "+suite=NAME": "+suite=nano",
    "suite=NAME": "suite=nano",
    "machine=NAME": "machine=paper_a100",
    "model=NAME": "model=tiny",
    "machine=local": "machine=my_box.yaml",  # local needs a probe of this very machine
    "what_if.target=N": "what_if.target=25",
    "limit=N": "limit=2",
    "PRICES.yaml": "conf/prices.example.yaml",
    "CHECKPOINT": "evals/nano",
    "CONFIG.json": "evals/nano/config.json",
    "FOLDER": "evals/nano",
    "DATA": "data",
    "RUN": "run",
    "A": "run",
    "B": "run",
    "decode-monday": "run",
    "decode-friday": "run",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command as words, without `python3 bootstrap.py` before it, and where it is shown."""

    where: str
    words: tuple[str, ...]

    @property
    def is_ktbench(self) -> bool:
        """Whether it is a verb of ours."""
        return self.words[:3] == KTBENCH or self.words[0] == "ktbench"

    @property
    def verb(self) -> tuple[str, ...]:
        """Verb and overrides, with placeholders filled in."""
        words = self.words[3:] if self.words[:3] == KTBENCH else self.words[1:]
        return tuple(map(filled, words))


def filled(word: str) -> str:
    """A word without placeholders."""
    if word in PLACEHOLDERS:
        return PLACEHOLDERS[word]
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{PLACEHOLDERS.get(value, value)}"


def commands() -> list[Command]:
    """Every command of every page: blocks of shell, prompts and commands in other blocks, and inline ones."""
    return [command for page in PAGES for command in commands_of(page.read_text(encoding="utf-8"), _name(page))]


def commands_of(text: str, page: str) -> Iterator[Command]:
    """The commands of a text."""
    for fence in _FENCE.finditer(text):
        body, start = fence["body"].replace("\\\n", " "), text.count("\n", 0, fence.start()) + 1
        for line in filter(None, map(str.strip, body.splitlines())):
            if words := _words(line, fence["language"]):
                yield Command(where=f"{page}:{start}", words=words)
    for inline in _INLINE.finditer(_FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)):
        if _is_whole(inline[1]):
            words = (*KTBENCH, *shlex.split(inline[1].removeprefix("python -m ktbench ")))
            yield Command(where=f"{page}:{text.count(chr(10), 0, inline.start()) + 1}", words=words)


def _words(line: str, language: str) -> tuple[str, ...]:
    """The words of a line of a block; none of a comment, and of what a program prints."""
    prompted = line.startswith("$ ")
    line = _BOOTSTRAP.sub("", line.removeprefix("$ "))
    told = language in _SHELL if language != "console" else prompted
    if not (told or (language == "" and (prompted or line.startswith(" ".join(KTBENCH))))):
        return ()
    words = tuple(shlex.split(line, comments=True))
    return words if "VERB" not in words else ()


def _is_whole(inline: str) -> bool:
    """Whether an inline command can be run as it stands: the name of a verb with `…` or KEY=VALUE is prose."""
    return ("=" in inline or inline.startswith("python")) and not re.search(r"…|\.\.\.|KEY|VERB|\[|=$", inline)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
